"""Runs side by side: figures, losses at the same steps and settings that differ, made from their metrics files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myxtts.monitoring.compared_run import ComparedRun
from myxtts.monitoring.comparison_figures import Figure, do_equal_work, make_figures
from myxtts.monitoring.run_summary import RUNNING, RunSummary
from myxtts.monitoring.words import UNKNOWN, format_count

FEWEST_RUNS = 2
MOST_STEPS_SHOWN = 8
"""Of the table of losses."""

_IRRELEVANT = frozenset({"training.checkpoint_dir", "training.tensorboard_log_dir"})
"""Settings that differ between any two runs and change nothing."""
_OBSTACLES: Mapping[str, str] = {
    "data.train_data": "they train on different corpora",
    "data.val_data": "they are validated on different clips",
    "training.codec": "they learn the codes of different codecs",
    "training.init_from": "they start from different models, and learn the codes of those",
}
"""Settings that make a loss mean something else, and why."""


@dataclass(frozen=True)
class Difference:
    """A setting or a fact that is not the same in all runs."""

    key: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class LossTable:
    """One kind of loss of every run at the same steps; None where a run has none there."""

    name: str
    steps: tuple[int, ...]
    losses: tuple[tuple[float | None, ...], ...]
    """A row per step."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    runs: tuple[ComparedRun, ...]
    figures: tuple[Figure, ...]
    tables: tuple[LossTable, ...]
    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]
    """What a reader must know before believing a figure."""


def compare_runs(runs: Sequence[ComparedRun]) -> Comparison:
    """All figures of the runs; the better one is marked where a figure has a better side."""
    obstacles = find_loss_obstacles(runs)
    return Comparison(
        runs=tuple(runs),
        figures=tuple(make_figures(runs, ranks_losses=not obstacles)),
        tables=tuple(table for table in (_tabulate_training(runs), _tabulate_validation(runs)) if table.steps),
        differences=tuple(_find_differences(runs)),
        remarks=tuple(_make_remarks(runs, obstacles)),
    )


def find_loss_obstacles(runs: Sequence[ComparedRun]) -> list[str]:
    """Why the losses of these runs do not mean the same; empty when they do."""
    if len({run.summary.stage for run in runs}) > 1:
        return [f"they are of different stages ({', '.join(run.summary.stage or UNKNOWN for run in runs)})"]
    reasons = [
        reason
        for key, reason in _OBSTACLES.items()
        if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)
    ]
    return list(dict.fromkeys(reasons))


def _tabulate_training(runs: Sequence[ComparedRun]) -> LossTable:
    steps = _choose_steps({step for run in runs for step, _ in run.training_losses})
    # A run that has ended has no loss at later steps.
    rows = [tuple(run.find_training_loss(step) if step <= run.summary.step else None for run in runs) for step in steps]
    return LossTable("training loss", steps, tuple(rows))


def _tabulate_validation(runs: Sequence[ComparedRun]) -> LossTable:
    curves = [dict(run.validation_losses) for run in runs]
    steps = _choose_steps({step for curve in curves for step in curve})
    return LossTable(
        "validation loss", steps, tuple(tuple(curve.get(step) for curve in curves) for step in steps)
    )  # fmt: skip


def _choose_steps(steps: set[int]) -> tuple[int, ...]:
    """At most so many of them, spread evenly, the first and the last included."""
    ordered = sorted(steps)
    if len(ordered) <= MOST_STEPS_SHOWN:
        return tuple(ordered)
    last = MOST_STEPS_SHOWN - 1
    return tuple(ordered[round(number * (len(ordered) - 1) / last)] for number in range(MOST_STEPS_SHOWN))


def _find_differences(runs: Sequence[ComparedRun]) -> list[Difference]:
    facts = [_list_facts(run) for run in runs]
    keys = dict.fromkeys(key for one in facts for key in one)
    rows = [Difference(key, tuple(one.get(key, "not there") for one in facts)) for key in keys]
    return [row for row in rows if len(set(row.texts)) > 1]


def _list_facts(run: ComparedRun) -> dict[str, str]:
    session = run.session
    if session is None:
        return {}
    facts = {"stage": session.stage, "mode": session.mode}
    facts |= {f"{role} device": device for role, device in session.devices.items()}
    facts |= {key: str(value) for key, value in run.settings.items() if key not in _IRRELEVANT}
    return facts | {f"environment {key}": str(value) for key, value in session.environment.items()}


def _make_remarks(runs: Sequence[ComparedRun], obstacles: Sequence[str]) -> list[str]:
    remarks = [
        f"{run.name} is unfinished ({_explain_status(run.summary)}): its figures are of the {format_count(run.summary.step)} steps so far."
        for run in runs
        if not run.is_finished
    ]
    if obstacles:
        remarks.append(f"No loss is called better: {'; '.join(obstacles)}.")
    if not do_equal_work(runs):
        remarks.append(
            "No step time is called better: a step is not the same work (batch, accumulation or model differ)."
        )
    remarks += [
        f"{run.name}: {run.metrics.unreadable} lines of its metrics file could not be read."
        for run in runs
        if run.metrics.unreadable
    ]
    return remarks


def _explain_status(summary: RunSummary) -> str:
    return "it still runs, or was killed" if summary.status == RUNNING else summary.status
