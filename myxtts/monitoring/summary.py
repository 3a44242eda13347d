"""A run in a few figures, made from its rows: where the time went, who waited, and what to try first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from myxtts.monitoring.clock import (
    Cause,
    Flow,
    Spent,
    StepTimes,
    add_flows,
    measure_durations,
    measure_elapsed,
    measure_goodput,
    measure_training,
    sum_spent,
)
from myxtts.monitoring.findings import (
    Finding,
    MachineFacts,
    RunFacts,
    Settings,
    find_limit,
    find_timing_variation,
)
from myxtts.monitoring.memory import LEAK_EVENT
from myxtts.monitoring.metrics import EventRow, MachineRow, MemoryUse, Row, RunRow, SummaryRow, TrainRow, ValidationRow
from myxtts.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_parts,
    format_share,
    format_step_time,
    wrap_titled,
)

RUNNING = "running or killed"


@dataclass(frozen=True)
class RunSummary:
    """The figures of a run over all its sessions. None is unknown."""

    stage: str | None
    mode: str | None
    status: str
    sessions: int
    step: int
    epoch: int | None
    first_loss: float | None
    last_loss: float | None
    """Means over the first and the last row."""
    last_parts: Mapping[str, float]
    """What stands beside the loss in the last row."""
    best_validation: tuple[int, float] | None
    """Step and loss."""
    spent: Spent
    times: StepTimes | None
    flow: Flow | None
    clips_per_s: float | None
    audio_seconds_per_s: float | None
    padding_waste: float | None
    retraces: int
    limit: Finding | None
    variation: Finding | None
    memory: tuple[MemoryUse, ...] = ()
    """By device and process, what was read last."""
    machine: MachineRow | None = None
    """Cards and host, as they were last."""
    leaks: tuple[str, ...] = ()
    """The last word on each memory that kept growing."""
    expected: str | None = None
    """What the mode was chosen for and what came of it, where it was chosen by measuring."""

    @property
    def elapsed_s(self) -> float:
        return measure_elapsed(self.spent)

    @property
    def goodput(self) -> float | None:
        return measure_goodput(self.spent)

    @property
    def data_stall(self) -> float | None:
        """Share of the time elapsed in which the training waited for a batch."""
        return self.spent[Cause.DATA_STALL] / self.elapsed_s if self.elapsed_s > 0 else None


def summarise_run(rows: Sequence[Row], tail: Spent | None = None, status: str | None = None) -> RunSummary:
    """The summary of a run from its rows, or of one about to end: with its status, and time that no row has yet (`tail`)."""
    runs = [row for row in rows if isinstance(row, RunRow)]
    trains = [row for row in rows if isinstance(row, TrainRow)]
    spent = sum_spent([row.spent for row in rows if isinstance(row, TrainRow | SummaryRow)] + ([tail] if tail else []))
    # What a killed session did after its last checkpoint was done again by the next one.
    spent[Cause.RECOVERY] += math.fsum(row.lost_s for row in runs)
    flow = add_flows([row.flow for row in trains if row.flow is not None])
    durations_s = [duration for row in trains for duration in row.step_times_s]
    times = measure_durations(durations_s, sum(row.left_out for row in trains))
    settings = read_settings(runs[-1]) if runs else Settings({})
    mode = runs[-1].mode if runs else None
    padded = sum(row.padded_samples for row in trains)
    padding = 1 - sum(row.samples for row in trains) / padded if padded else None
    retraces = sum(row.retraces for row in trains)
    facts = RunFacts(mode or "", settings, spent, flow, times, padding, retraces)
    clips_per_s = audio_seconds_per_s = None
    # The rates of all rows that have any, each with the weight of its time.
    timed = [(measure_training(row.spent), row.clips_per_s, row.audio_seconds_per_s) for row in trains]
    known = np.array([each for each in timed if None not in each], np.float64).reshape(-1, 3)
    if known[:, 0].sum() > 0:
        clips_per_s, audio_seconds_per_s = np.average(known[:, 1:], axis=0, weights=known[:, 0]).tolist()
    # A session has ended in order only if its summary came after its beginning.
    ends = [row for row in rows if isinstance(row, SummaryRow | RunRow)]
    # As marked, not the lowest: a codec's losses before it has codes are no rank.
    marked = [row for row in rows if isinstance(row, ValidationRow) and row.is_best]
    best = [(row.step, row.loss) for row in marked if math.isfinite(row.loss)]
    # Of what was told several times, as it grew, the last.
    leaks = {row.text.split(",")[0]: row.text for row in rows if isinstance(row, EventRow) and row.name == LEAK_EVENT}
    return RunSummary(
        stage=runs[-1].stage if runs else None,
        mode=mode,
        status=status or (ends[-1].status if ends and isinstance(ends[-1], SummaryRow) else RUNNING),
        sessions=len(runs),
        step=max((row.step for row in rows), default=0),
        epoch=trains[-1].epoch if trains else None,
        first_loss=trains[0].loss if trains else None,
        last_loss=trains[-1].loss if trains else None,
        last_parts=trains[-1].loss_parts if trains else {},
        best_validation=best[-1] if best else None,
        spent=spent,
        times=times,
        flow=flow,
        clips_per_s=clips_per_s,
        audio_seconds_per_s=audio_seconds_per_s,
        padding_waste=padding,
        retraces=retraces,
        limit=find_limit(facts),
        variation=find_timing_variation(times, flow, mode or "", settings),
        memory=trains[-1].memory if trains else (),
        machine=next((row for row in reversed(rows) if isinstance(row, MachineRow)), None),
        leaks=tuple(leaks.values()),
        expected=_compare_prediction(rows),
    )


def read_settings(run: RunRow) -> Settings:
    """Those of a session, with the stage that it trains: a codec is trained first where there is none."""
    training = {**run.settings.get("training", {}), "stage": run.stage}
    return Settings({**run.settings, "training": training}, MachineFacts.parse(run.around))


def _compare_prediction(rows: Sequence[Row]) -> str | None:
    """What `--mode auto` expected of the last session, and what its steps took: sessions before may have had another mode."""
    begins = [number for number, row in enumerate(rows) if isinstance(row, RunRow)]
    session = rows[begins[-1]] if begins else None
    if not isinstance(session, RunRow) or session.predicted_step_s is None:
        return None
    trains = [row for row in rows[begins[-1] :] if isinstance(row, TrainRow)]
    durations_s = [duration for row in trains for duration in row.step_times_s]
    predicted = f"predicted {format_step_time(session.predicted_step_s)} a step"
    if not durations_s:
        return f"{predicted}; reached {UNKNOWN}: no step counts yet"
    reached_s = fmean(durations_s)
    return f"{predicted}, reached {format_step_time(reached_s)} ({reached_s / session.predicted_step_s - 1:+.0%})"


def format_summary(summary: RunSummary) -> str:
    """The whole summary: what was reached, where the time went, who waited, and the verdict as the last line."""
    machine, flow = summary.machine, summary.flow
    sessions = f", {summary.sessions} sessions" if summary.sessions > 1 else ""
    loss = f"{format_number(summary.first_loss)} -> {format_number(summary.last_loss)}"
    loss += f" ({parts})" if (parts := format_parts(summary.last_parts)) else ""
    if summary.best_validation is not None:
        step, best = summary.best_validation
        loss += f"; best validation {format_number(best)} at step {format_count(step)}"
    badput = [(seconds, cause) for cause, seconds in summary.spent.items() if cause is not Cause.STEP and seconds > 0]
    shares = [(cause, format_share(seconds / summary.elapsed_s)) for seconds, cause in sorted(badput, reverse=True)]
    rest = ", ".join(f"{cause} {share}" for cause, share in shares if share != format_share(0.0)) or "nothing"
    return _join(
        ("Run", f"{summary.stage or UNKNOWN}, {summary.mode or UNKNOWN} mode, {summary.status}; "
                f"{format_count(summary.step)} steps in {format_duration(summary.elapsed_s)}{sessions}"),
        ("Loss", loss),
        ("Goodput", f"{format_share(summary.goodput)}; the rest: {rest}"),
        *_list_pace(summary.times, summary.clips_per_s, summary.audio_seconds_per_s),
        ("Padding", f"{format_share(summary.padding_waste)} of what is computed; {summary.retraces} retraces"),
        ("Data stall", f"{format_share(summary.data_stall)} of the time, the training waited for a batch"),
        *(_list_handoffs(flow) if flow is not None else []),
        ("Memory", "; ".join(map(_describe_memory, summary.memory)) or UNKNOWN),
        *((f"GPU {card.physical_id}", card.describe()) for card in (machine.cards if machine else ())),
        *([("Host", machine.host.describe())] if machine else []),
        *([("Auto mode", summary.expected)] if summary.expected else []),
        *([("Finding", str(summary.variation))] if summary.variation else []),
        *(("Finding", leak) for leak in summary.leaks),
        ("Verdict", str(summary.limit) if summary.limit else f"{UNKNOWN}: nothing was trained yet."),
    )  # fmt: skip


def format_performance(
    times: StepTimes | None, clips_per_s: float | None, audio_seconds_per_s: float | None, variation: Finding | None
) -> str:
    """The pace of a session in two or three lines: step times, throughput, and what makes them vary."""
    finding = [] if variation is None else [("Finding", str(variation))]
    return _join(*_list_pace(times, clips_per_s, audio_seconds_per_s), *finding)


def _join(*rows: tuple[str, str]) -> str:
    lines = [wrap_titled(title, text, indent=13, breaks_words=False) for title, text in rows]
    return "\n".join(line for each in lines for line in each)


def _list_pace(
    times: StepTimes | None, clips_per_s: float | None, audio_seconds_per_s: float | None
) -> list[tuple[str, str]]:
    clips, audio = format_number(clips_per_s, 3), format_number(audio_seconds_per_s, 3)
    steps = UNKNOWN
    if times is not None:
        p50, p95, mean, std, low, high = map(
            format_step_time, (times.p50_s, times.p95_s, times.mean_s, times.std_s, times.min_s, times.max_s)
        )
        steps = (
            f"{p50} p50, {p95} p95, mean {mean} +- {std} ({low} to {high}), variation {format_share(times.variation)}, "
            f"over {format_count(times.steps)} steps ({format_count(times.left_out)} left out)"
        )
    return [("Step time", steps), ("Throughput", f"{clips} clips/s, {audio} seconds of audio per second")]


def _list_handoffs(flow: Flow) -> Iterator[tuple[str, str]]:
    for number, handoff in enumerate(flow.handoffs):
        taker, giver = (format_share(flow.share(wait_s)) for wait_s in (handoff.taker_wait_s, handoff.giver_wait_s))
        ready, takes, gives = format_share(handoff.readiness), flow.name_taker(number), flow.name_giver(number)
        yield "", f"{handoff.name}: ready {ready}; {takes} waits {taker}, {gives} waits {giver}"
    for each in flow.preparers:
        idle, waited = (format_share(flow.share(wait_s)) for wait_s in (each.giver_wait_s, each.taker_wait_s))
        made = f"{format_count(each.items)} batches"
        yield "", f"{each.name}: {made}; waits {idle} for work, train waits {waited} for it"
    for each in flow.trainers:
        others, data = (format_share(flow.share(wait_s)) for wait_s in (each.giver_wait_s, each.taker_wait_s))
        yield "", f"{each.name}: waits {data} for its batches, {others} for other trainers"


def _describe_memory(use: MemoryUse) -> str:
    """What a device or process holds, with what is known of its parts."""
    sizes = {"TensorFlow": use.pool_bytes, "process": use.process_bytes, "context": use.context_bytes}
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None)
    return f"{use} ({parts})" if parts else str(use)
