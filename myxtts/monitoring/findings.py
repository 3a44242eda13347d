"""What the facts of a run show: what limits it, with the evidence and the change worth trying first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from myxtts.config import XTTSConfig
from myxtts.config.sources import dump_sections
from myxtts.data.loaders import MOST_AUTO_READERS
from myxtts.devices.machine import Machine, select_visible
from myxtts.errors import DevicePlanError
from myxtts.files import fit_shape
from myxtts.monitoring.clock import (
    ENOUGH_STEPS,
    TRAINING,
    Cause,
    Flow,
    Spent,
    StepTimes,
    find_slowest,
    measure_elapsed,
)
from myxtts.units import format_share


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has for a run. None is unknown."""

    cards: tuple[int, ...] | None = None
    """Physical ids of the cards that a run can use, in TensorFlow's order."""
    processors: int | None = None
    """Those that the run may use."""
    serves_xla: bool | None = None
    """Whether the TensorFlow that is installed can compile for all of the cards."""

    @classmethod
    def of_machine(cls, machine: Machine) -> Self:
        try:
            cards = select_visible(machine.cards, machine.environ)
        except DevicePlanError:
            # Ids in CUDA_VISIBLE_DEVICES that are not there: no card can be used before that is put right.
            cards = ()
        serves_xla = None if machine.built is None else all(map(machine.built.can_compile_for, cards))
        return cls(tuple(int(card.physical_id) for card in cards), len(os.sched_getaffinity(0)), serves_xla)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values, in which things may be missing; what is none of a machine is unknown."""
        try:
            return fit_shape(values, cls)
        except ValueError:
            return cls()


@dataclass(frozen=True)
class Settings:
    """The settings of a run by dotted key; None for those that are not known."""

    sections: Mapping[str, Any]
    """By section and name, as a metrics file has them: with what `auto` came to."""
    around: MachineFacts = MachineFacts()

    @classmethod
    def of_config(cls, config: XTTSConfig, around: MachineFacts) -> Self:
        return cls(settle_sections(config, around), around)

    def find(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return self.sections.get(section, {}).get(name)

    def find_number(self, key: str) -> int | None:
        """A whole number; None also for `auto`."""
        value = self.find(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def batch(self) -> tuple[int | None, int | None]:
        """Clips at once, and how often for an update."""
        return self.find_number("data.batch_size"), self.find_number("training.gradient_accumulation_steps")

    @property
    def is_auto(self) -> bool:
        """Whether `--mode auto` has weighed every mode, with codes kept and without."""
        return bool(self.find("training.mode") == "auto")


def settle_sections(config: XTTSConfig, around: MachineFacts) -> dict[str, dict[str, Any]]:
    """Every setting by section and name, with what `auto` comes to on a machine as far as that is known before a run."""
    sections = dump_sections(config)
    sections["data"]["prefetch_buffer_size"] = config.data.prefetch_depth
    if config.data.num_workers == "auto" and around.processors is not None:
        sections["data"]["num_workers"] = min(around.processors, MOST_AUTO_READERS)
    return sections


READING, PREPARING, TRANSFER = "read", "prepare", "transfer"

USUAL_READERS = 4
MOST_PREFETCHED = 8
"""Batches on the data device: a copy gets no faster by more of them waiting for it."""
MOST_AHEAD = 65536
"""The setting allows no more."""
SHORTER = 0.75


def advise_faster(stage: str, mode: str, settings: Settings) -> str | None:
    """The flag that makes a stage faster, by the stage's name; None when there is none left to try."""
    find = settings.find
    if stage == READING:
        return _advise_readers(settings)
    if stage == PREPARING:
        cards, is_given = settings.around.cards or (), find("training.mode") is not None
        is_alone = mode == "single" and find("training.model_gpus") is None and not find("training.cluster")
        has_second = is_alone and len(cards) >= 2 and not find("training.rehearsal") and not settings.is_auto
        # The first one trains where no ids are given.
        second = f"{'--mode dual ' * is_given}--data-gpu {cards[1]} --model-gpu {cards[0]}" if has_second else None
        return _advise_cache(settings) or second
    if stage == TRANSFER:
        return _advise_prefetch(mode, settings)
    if stage != TRAINING:
        return None
    has_card = bool(settings.around.cards) and find("training.rehearsal") is False
    if has_card and find("data.mixed_precision") == "float32":
        return "--mixed-precision"
    if find("data.pad_to_fixed_length") is False:
        return "--enable-static-shapes"
    # Left to itself XLA is on where a card serves it.
    is_refused = has_card and settings.around.serves_xla is False
    if not is_refused and (find("data.enable_xla") is False or (find("data.enable_xla") == "auto" and not has_card)):
        return "--enable-xla"
    return _advise_larger_batch(settings)


def advise_steadier(stage: str, mode: str, settings: Settings) -> str | None:
    """The flag that makes step times more even, by the stage that is waited for; None when there is none left to try."""
    if stage == READING:
        ahead = settings.find_number("data.pipeline_buffer_size")
        if settings.find_number("data.num_workers") == 0:
            # Where this process reads, there is nobody to read ahead.
            return _advise_readers(settings)
        return None if ahead is None or ahead >= MOST_AHEAD else f"--buffer-size {min(MOST_AHEAD, ahead * 2)}"
    if stage == PREPARING:
        return _advise_prefetch(mode, settings) or _advise_cache(settings)
    if stage == TRANSFER:
        return _advise_prefetch(mode, settings)
    if settings.find("data.pad_to_fixed_length") is False:
        return "--enable-static-shapes"
    # Nobody waits: the batches themselves differ, as short and long clips do.
    longest_s, shortest_s = settings.find("data.max_clip_seconds"), settings.find("data.min_clip_seconds") or 0.0
    shorter_s = float(f"{SHORTER * longest_s:.3g}") if isinstance(longest_s, int | float) else 0.0
    return f"--max-clip-seconds {shorter_s:g}" if shorter_s > shortest_s else None


def advise_smaller_batch(settings: Settings) -> str | None:
    """A smaller batch and more accumulation: the same update from less memory and less padding. None for batches of one clip."""
    return split_batch(*settings.batch)


def split_batch(batch_size: int | None, accumulation: int | None) -> str | None:
    """Flags for as many clips per update in smaller batches; None where they are not known, or cannot be smaller."""
    if batch_size is None or accumulation is None or batch_size < 2:
        return None
    parts = next(number for number in range(2, batch_size + 1) if batch_size % number == 0)
    return f"--batch-size {batch_size // parts} --grad-accum {accumulation * parts}"


def _advise_readers(settings: Settings) -> str | None:
    readers, processors = settings.find_number("data.num_workers"), settings.around.processors
    # One processor has none to spare.
    if readers is None or processors is None or processors < 2:
        return None
    more = min(processors, readers * 2 if readers else USUAL_READERS)
    return f"--num-workers {more}" if more > readers else None


def _advise_prefetch(mode: str, settings: Settings) -> str | None:
    depth = settings.find_number("data.prefetch_buffer_size")
    # One device has no second one to be ahead on, and between processes there are three slots in any case.
    if mode != "dual" or depth is None or depth >= MOST_PREFETCHED:
        return None
    return f"--prefetch-buffer-size {min(MOST_PREFETCHED, depth * 2)}"


def _advise_cache(settings: Settings) -> str | None:
    """`--cache auto` weighs the cost itself: only where nothing may be kept is there something to allow."""
    # Of waves that are changed each time no codes can be kept; a noise of 0 dB is one too.
    changes = [settings.find(f"data.augment_{name}") for name in ("gain_db", "speed")]
    changes_waves = any(changes) or settings.find("data.augment_noise_db") is not None
    if settings.is_auto or settings.find("training.stage") not in (None, "gpt") or changes_waves:
        return None
    return "--cache auto" if settings.find("data.cache") == "off" else None


def advise_fewer_launches(settings: Settings, *, is_compiled: bool) -> tuple[str, ...]:
    """What lets a card compute more with every kernel that it starts, each a sentence; the first is worth trying first."""
    compiled = "XLA would start fewer kernels; `myxtts diagnose` says why this TensorFlow cannot compile for the card."
    if settings.around.serves_xla is False:
        pass
    elif settings.find("data.pad_to_fixed_length") is False:
        compiled = "XLA needs fixed shapes, and compiles the step into fewer kernels then: --enable-static-shapes"
    elif settings.find("data.enable_xla") is False:
        compiled = "Compile the step by XLA, into fewer kernels: --enable-xla"
    batch_size, larger = settings.batch[0], _advise_larger_batch(settings)
    where = f"with as many clips per update: {larger}"
    if larger is None:
        where = f"where memory allows: --batch-size{'' if batch_size is None else f' {batch_size * 2}'}"
    return (() if is_compiled else (compiled,)) + (f"A larger batch computes more with every kernel, {where}",)


def _advise_larger_batch(settings: Settings) -> str | None:
    """As many clips per update in larger batches; None where that is not known to be possible."""
    batch_size, accumulation = settings.batch
    if batch_size is None or accumulation is None or accumulation % 2:
        return None
    return f"--batch-size {batch_size * 2} --grad-accum {accumulation // 2}"


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
    who = f"the training waits for stage {slowest!r}"
    if slowest == TRAINING:
        who = "nobody waits: the steps themselves take different times"
    evidence = f"{format_share(times.variation)} of the mean step time; {who}"
    return Finding("High timing variation", evidence, advise_steadier(slowest, mode, settings), times.variation)


def find_limit(facts: RunFacts) -> Finding | None:
    """What limits the run: whatever costs the largest share of the time, or the training itself. None before anything was trained.

    Time of start-up does not count: it is paid once, and a longer run pays it back.
    """
    step_s, trace_s = facts.spent.get(Cause.STEP, 0.0), facts.spent.get(Cause.TRACE, 0.0)
    # The first step of each shape counts as tracing, and a very short run may have no other.
    if step_s + trace_s <= 0:
        return None
    timed = 0 if facts.times is None else facts.times.steps
    loop_s = measure_elapsed(facts.spent) - facts.spent.get(Cause.START_UP, 0.0) - trace_s
    # Shares of a time that is mostly tracing would name a limit that is none; what traces again and again is not mended by going on.
    if facts.retraces < ENOUGH_STEPS and (timed < ENOUGH_STEPS or loop_s < trace_s):
        share = trace_s / (trace_s + loop_s)
        evidence = f"{timed} steps were timed, and tracing took {format_share(share)} of the time after start-up"
        return Finding(TOO_SHORT, evidence, LONGER, share)
    dearest = max(_list_costs(facts, loop_s, trace_s), key=lambda finding: finding.share, default=None)
    if dearest is not None and dearest.share >= WORTH_NAMING:
        return dearest
    share = step_s / loop_s
    evidence = f"{format_share(share)} of the time after start-up is spent in steps, so the model device hardly waits"
    flag = advise_faster(TRAINING, facts.mode, facts.settings)
    return Finding("The training itself limits the run", evidence, flag, share)


def _list_costs(facts: RunFacts, loop_s: float, trace_s: float) -> Iterator[Finding]:
    """Everything that costs time besides the training; shares are of the time after start-up, which tracing is no part of."""
    mode, settings, flow = facts.mode, facts.settings, facts.flow
    shares = {cause: seconds / loop_s for cause, seconds in facts.spent.items() if seconds > 0} if loop_s > 0 else {}
    if stall := shares.get(Cause.DATA_STALL):
        slowest = None
        if flow is not None and flow.stages:
            slowest = find_slowest(flow)
            if slowest == TRAINING:
                slowest = max(flow.stages, key=lambda stage: stage.busy_s).name
        title = f"Stage {slowest!r} limits the run" if slowest else "The data limits the run"
        evidence = f"the model waits for batches {format_share(stall)} of the time after start-up"
        yield Finding(title, evidence, advise_faster(slowest or READING, mode, settings), stall)
    others = "look at who is slowest: every worker has its own metrics, in worker-1, worker-2, ..."
    costs: list[tuple[Cause, str, str | None]] = [
        (Cause.TRANSFER, "Moving batches to the model device", advise_faster(TRANSFER, mode, settings)),
        (Cause.RECOVERY, "Recovering from failures", advise_smaller_batch(settings)),
        (Cause.OTHER_WORKERS, "Waiting for other workers", others),
    ]
    # What comes every so many updates, and once at the end.
    updates = 0 if facts.times is None else facts.times.steps + facts.times.left_out
    for cause, title in ((Cause.CHECKPOINT, "Saving checkpoints"), (Cause.VALIDATION, "Validation")):
        interval = settings.find_number(f"training.{cause}_interval")
        if interval is None or updates >= ENOUGH_ROUNDS * interval:
            costs.append((cause, title, None if interval is None else f"--{cause}-interval {interval * 2}"))
        elif share := shares.get(cause):
            evidence = (
                f"{cause} took {format_share(share)} of the time after start-up. It comes every {interval} updates and at the end, "
                f"and {updates} were made"
            )
            yield Finding(TOO_SHORT, evidence, LONGER, share)
    for cause, title, flag in costs:
        if share := shares.get(cause):
            evidence = f"it takes {format_share(share)} of the time after start-up"
            yield Finding(f"{title} limits the run", evidence, flag, share)
    if facts.retraces:
        share = trace_s / (loop_s + trace_s)
        static = "--enable-static-shapes" if settings.find("data.pad_to_fixed_length") is False else None
        evidence = f"{facts.retraces} retraces; tracing took {format_share(share)} of the time after start-up"
        yield Finding("Tracing anew limits the run", evidence, static, share)
    if facts.padding_waste is not None and facts.padding_waste >= MUCH_PADDING:
        evidence = f"{format_share(facts.padding_waste)} of what is computed is padding"
        share = facts.padding_waste * shares.get(Cause.STEP, 0.0)
        yield Finding("Padding limits the run", evidence, advise_smaller_batch(settings), share)
