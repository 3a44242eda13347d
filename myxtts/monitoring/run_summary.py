"""A run in a few figures, made from its rows: where the time went, who waited, and what to try first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from myxtts.monitoring.findings import Finding, RunFacts, find_limit, find_timing_variation
from myxtts.monitoring.flow import Flow, add_flows
from myxtts.monitoring.memory_watch import LEAK_EVENT
from myxtts.monitoring.metrics_rows import (
    EventRow,
    MachineRow,
    MemoryUse,
    Row,
    RunRow,
    SummaryRow,
    TrainRow,
    ValidationRow,
)
from myxtts.monitoring.settings_in_force import MachineFacts, Settings
from myxtts.monitoring.speed_up import SpeedUp, measure_speed_up
from myxtts.monitoring.step_clock import StepTimes, measure_durations
from myxtts.monitoring.time_ledger import Cause, Spent, measure_elapsed, measure_goodput, measure_training, sum_spent

RUNNING = "running or killed"


@dataclass(frozen=True)
class Expectation:
    """What the last session's mode was chosen for, and what came of it, in seconds per step."""

    predicted_s: float
    reached_s: float | None
    """The mean over that session's steps that count; None before there are any."""


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
    speed_up: SpeedUp | None
    limit: Finding | None
    variation: Finding | None
    memory: tuple[MemoryUse, ...] = ()
    """By device and process, what was read last."""
    machine: MachineRow | None = None
    """Cards and host, as they were last."""
    leaks: tuple[str, ...] = ()
    """The last word on each memory that kept growing."""
    expected: Expectation | None = None
    """Where the mode was chosen by measuring."""

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
    """The summary of a run from its rows.

    Args:
        tail: time of a session about to end that no row has: the ledger's last window.
        status: of that session; by default what the last row says.
    """
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
    clips_per_s, audio_seconds_per_s = _measure_rates(trains)
    # Of what was told several times, as it grew, the last.
    leaks = {row.text.split(",")[0]: row.text for row in rows if isinstance(row, EventRow) and row.name == LEAK_EVENT}
    return RunSummary(
        stage=runs[-1].stage if runs else None,
        mode=mode,
        status=status or _find_status(rows),
        sessions=len(runs),
        step=max((row.step for row in rows), default=0),
        epoch=trains[-1].epoch if trains else None,
        first_loss=trains[0].loss if trains else None,
        last_loss=trains[-1].loss if trains else None,
        last_parts=trains[-1].loss_parts if trains else {},
        best_validation=_find_best([row for row in rows if isinstance(row, ValidationRow)]),
        spent=spent,
        times=times,
        flow=flow,
        clips_per_s=clips_per_s,
        audio_seconds_per_s=audio_seconds_per_s,
        padding_waste=padding,
        retraces=retraces,
        # Where no step was timed, what was measured is warming up.
        speed_up=None
        if times is None
        else measure_speed_up(flow, spent, sum(row.batches - row.traced_batches for row in trains)),
        limit=find_limit(facts),
        variation=find_timing_variation(times, flow, mode or "", settings),
        memory=trains[-1].memory if trains else (),
        machine=next((row for row in reversed(rows) if isinstance(row, MachineRow)), None),
        leaks=tuple(leaks.values()),
        expected=_compare_prediction(rows),
    )


def dump_summary(summary: RunSummary) -> dict[str, Any]:
    """The summary as JSON, with the figures that are computed from others."""
    figures = asdict(summary)
    figures |= {
        "elapsed_s": summary.elapsed_s,
        "goodput": summary.goodput,
        "data_stall": summary.data_stall,
        "spent": {str(cause): seconds for cause, seconds in summary.spent.items()},
        "verdict": str(summary.limit) if summary.limit else None,
    }
    if summary.times is not None:
        figures["times"]["variation"] = summary.times.variation
    if summary.speed_up is not None:
        figures["speed_up"]["bound"] = summary.speed_up.bound
    return figures


def read_settings(run: RunRow) -> Settings:
    """Those of a session, with the stage that it trains: a codec is trained first where there is none."""
    training = {**run.settings.get("training", {}), "stage": run.stage}
    return Settings({**run.settings, "training": training}, MachineFacts.parse(run.around))


def _compare_prediction(rows: Sequence[Row]) -> Expectation | None:
    """Of the last session: the sessions before it may have had another mode."""
    predicted_s: float | None = None
    durations_s: list[float] = []
    for row in rows:
        if isinstance(row, RunRow):
            predicted_s, durations_s = row.predicted_step_s, []
        elif isinstance(row, TrainRow):
            durations_s += row.step_times_s
    return None if predicted_s is None else Expectation(predicted_s, fmean(durations_s) if durations_s else None)


def _measure_rates(trains: Sequence[TrainRow]) -> tuple[float | None, float | None]:
    """The rates of all rows that have any, each with the weight of its time."""
    timed = [(measure_training(row.spent), row.clips_per_s, row.audio_seconds_per_s) for row in trains]
    known = [(s, clips, audio) for s, clips, audio in timed if clips is not None and audio is not None]
    training_s = math.fsum(s for s, _, _ in known)
    if training_s <= 0:
        return None, None
    clips = math.fsum(s * rate for s, rate, _ in known)
    return clips / training_s, math.fsum(s * rate for s, _, rate in known) / training_s


def _find_best(validations: Sequence[ValidationRow]) -> tuple[int, float] | None:
    # As marked, not the lowest: a codec's losses before it has codes are no rank.
    marked = [row for row in validations if row.is_best and math.isfinite(row.loss)]
    return (marked[-1].step, marked[-1].loss) if marked else None


def _find_status(rows: Sequence[Row]) -> str:
    """That of the last session: it has ended in order only if its summary came after its beginning."""
    for row in reversed(rows):
        if isinstance(row, SummaryRow):
            return row.status
        if isinstance(row, RunRow):
            break
    return RUNNING
