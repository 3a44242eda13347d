"""What the facts of a run show: what limits it, with the evidence and the change worth trying first."""

from __future__ import annotations

from dataclasses import dataclass

from myxtts.monitoring.advice import advise_faster, advise_smaller_batch, advise_steadier
from myxtts.monitoring.flow import TRAINING, Flow, find_slowest
from myxtts.monitoring.progress import ENOUGH_STEPS
from myxtts.monitoring.settings_in_force import Settings
from myxtts.monitoring.step_clock import StepTimes
from myxtts.monitoring.time_ledger import Cause, Spent, measure_elapsed
from myxtts.monitoring.words import format_share

HIGH_VARIATION = 0.3
"""Standard deviation over mean of the step time."""
WORTH_NAMING = 0.1
"""A smaller share of the time is not what limits a run."""
MUCH_PADDING = 0.3
ENOUGH_ROUNDS = 2
"""Intervals of validations or checkpoints. In a shorter run the one at its end weighs more than it would in a longer one."""
TOO_SHORT = "This run is too short to judge"
LONGER = "a longer run"


@dataclass(frozen=True)
class Finding:
    """Something that costs time."""

    title: str
    evidence: str
    flag: str | None
    """The change worth trying; None when no setting would help."""
    share: float
    """Share of the time that is at stake, 0 to 1."""

    def __str__(self) -> str:
        advice = f" Try first: {self.flag}" if self.flag else " No setting would change that."
        return f"{self.title}: {self.evidence}.{advice}"


@dataclass(frozen=True)
class RunFacts:
    """What the findings are made from."""

    mode: str
    settings: Settings
    spent: Spent
    flow: Flow | None
    times: StepTimes | None
    padding_waste: float | None
    retraces: int


def find_timing_variation(times: StepTimes | None, flow: Flow | None, mode: str, settings: Settings) -> Finding | None:
    """The finding `High timing variation`, when the step times vary by more than 0.3 of their mean."""
    if times is None or times.steps < ENOUGH_STEPS or times.variation is None or times.variation <= HIGH_VARIATION:
        return None
    slowest = TRAINING if flow is None else find_slowest(flow)
    if slowest == TRAINING:
        who = "nobody waits: the steps themselves take different times"
    else:
        who = f"the training waits for stage {slowest!r}"
    evidence = f"{format_share(times.variation)} of the mean step time; {who}"
    return Finding("High timing variation", evidence, advise_steadier(slowest, mode, settings), times.variation)


def _find_dearest(facts: RunFacts) -> Finding | None:
    """What costs the largest share of the time, where any is worth naming."""
    candidates = [
        _find_data_stall(facts),
        _find_cause(facts, Cause.TRANSFER, "Moving batches to the model device", advise_faster("transfer", facts.mode, facts.settings)),
        _find_rounds(facts, Cause.CHECKPOINT, "Saving checkpoints", "checkpoint_interval"),
        _find_rounds(facts, Cause.VALIDATION, "Validation", "validation_interval"),
        _find_cause(facts, Cause.RECOVERY, "Recovering from failures", advise_smaller_batch(facts.settings)),
        _find_cause(facts, Cause.OTHER_WORKERS, "Waiting for other workers", "look at who is slowest: every worker has its own metrics, in worker-1, worker-2, ..."),
        _find_retraces(facts),
        _find_padding(facts),
    ]  # fmt: skip
    findings = [finding for finding in candidates if finding is not None and finding.share >= WORTH_NAMING]
    return max(findings, key=lambda finding: finding.share, default=None)


def find_limit(facts: RunFacts) -> Finding | None:
    """What limits the run: the dearest finding, or the training itself. None before anything was trained.

    Time of start-up does not count: it is paid once, and a longer run pays it back.
    """
    step_s = facts.spent.get(Cause.STEP, 0.0)
    # The first step of each shape counts as tracing, and a very short run may have no other.
    if step_s + facts.spent.get(Cause.TRACE, 0.0) <= 0:
        return None
    # What traces again and again is not mended by going on.
    if facts.retraces < ENOUGH_STEPS and (too_short := _find_too_short(facts)) is not None:
        return too_short
    if (dearest := _find_dearest(facts)) is not None:
        return dearest
    share = step_s / _measure_loop(facts.spent)
    evidence = f"{format_share(share)} of the time after start-up is spent in steps, so the model device hardly waits"
    flag = advise_faster(TRAINING, facts.mode, facts.settings)
    return Finding("The training itself limits the run", evidence, flag, share)


def _find_too_short(facts: RunFacts) -> Finding | None:
    """Why the facts say nothing yet: shares of a time that is mostly tracing would name a limit that is none."""
    steps = 0 if facts.times is None else facts.times.steps
    trace_s, loop_s = facts.spent.get(Cause.TRACE, 0.0), _measure_loop(facts.spent)
    if steps >= ENOUGH_STEPS and loop_s >= trace_s:
        return None
    share = trace_s / (trace_s + loop_s)
    evidence = f"{steps} steps were timed, and tracing took {format_share(share)} of the time after start-up"
    return Finding(TOO_SHORT, evidence, LONGER, share)


def _measure_loop(spent: Spent) -> float:
    return measure_elapsed(spent) - spent.get(Cause.START_UP, 0.0) - spent.get(Cause.TRACE, 0.0)


def _find_cause(facts: RunFacts, cause: Cause, title: str, flag: str | None) -> Finding | None:
    seconds, loop_s = facts.spent.get(cause, 0.0), _measure_loop(facts.spent)
    if seconds <= 0 or loop_s <= 0:
        return None
    share = seconds / loop_s
    return Finding(f"{title} limits the run", f"it takes {format_share(share)} of the time after start-up", flag, share)


def _find_data_stall(facts: RunFacts) -> Finding | None:
    found = _find_cause(facts, Cause.DATA_STALL, "", None)
    if found is None:
        return None
    slowest = None
    if facts.flow is not None and facts.flow.stages:
        slowest = find_slowest(facts.flow)
        if slowest == TRAINING:
            slowest = max(facts.flow.stages, key=lambda stage: stage.busy_s).name
    title = f"Stage {slowest!r} limits the run" if slowest else "The data limits the run"
    evidence = f"the model waits for batches {format_share(found.share)} of the time after start-up"
    flag = advise_faster(slowest or "read", facts.mode, facts.settings)
    return Finding(title, evidence, flag, found.share)


def _find_retraces(facts: RunFacts) -> Finding | None:
    elapsed_s = measure_elapsed(facts.spent) - facts.spent.get(Cause.START_UP, 0.0)
    if not facts.retraces or elapsed_s <= 0:
        return None
    share = facts.spent.get(Cause.TRACE, 0.0) / elapsed_s
    flag = "--enable-static-shapes" if facts.settings.find("data.pad_to_fixed_length") is False else None
    evidence = f"{facts.retraces} retraces; tracing took {format_share(share)} of the time after start-up"
    return Finding("Tracing anew limits the run", evidence, flag, share)


def _find_padding(facts: RunFacts) -> Finding | None:
    loop_s = _measure_loop(facts.spent)
    if facts.padding_waste is None or facts.padding_waste < MUCH_PADDING or loop_s <= 0:
        return None
    share = facts.padding_waste * facts.spent.get(Cause.STEP, 0.0) / loop_s
    evidence = f"{format_share(facts.padding_waste)} of what is computed is padding"
    return Finding("Padding limits the run", evidence, advise_smaller_batch(facts.settings), share)


def _find_rounds(facts: RunFacts, cause: Cause, title: str, name: str) -> Finding | None:
    """What comes every so many updates, and once at the end."""
    interval = facts.settings.find_number(f"training.{name}")
    rarer = None if interval is None else f"--{name.replace('_', '-')} {interval * 2}"
    found = _find_cause(facts, cause, title, rarer)
    steps = 0 if facts.times is None else facts.times.steps + facts.times.left_out
    if found is None or interval is None or steps >= ENOUGH_ROUNDS * interval:
        return found
    evidence = (
        f"{cause} took {format_share(found.share)} of the time after start-up. It comes every {interval} updates and at the end, "
        f"and {steps} were made"
    )
    return Finding(TOO_SHORT, evidence, LONGER, found.share)
