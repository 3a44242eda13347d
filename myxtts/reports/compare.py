"""Runs side by side: figures, which of them is the better one, and settings that differ. Their curves are TensorBoard's."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.monitoring.errors import NotARunError
from myxtts.monitoring.metrics_log import FILE_NAME, Metrics, read_metrics
from myxtts.monitoring.metrics_rows import RunRow, TrainRow, ValidationRow, name_infinities
from myxtts.monitoring.run_summary import RUNNING, RunSummary, dump_summary, summarise_run
from myxtts.monitoring.words import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_share,
    format_step_time,
)
from myxtts.reports.pages import render_page

WIDTH, NAME_WIDTH = 80, 22
MOST_COLUMNS = 4
"""Runs that stand beside each other in a terminal; more follow below."""
_MARK, _BLANK = " *", "  "
_WORK = (
    "data.batch_size", "training.gradient_accumulation_steps", "model.gpt_layers", "model.gpt_width", "model.dvae_width",
)  # fmt: skip
"""Settings that say how much work a step is."""
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
class ComparedRun:
    """One of the runs."""

    name: str
    """A letter, by which all tables name it."""
    path: Path
    metrics: Metrics
    summary: RunSummary

    @property
    def session(self) -> RunRow | None:
        """Its last start."""
        return next((row for row in reversed(self.metrics.rows) if isinstance(row, RunRow)), None)

    @property
    def settings(self) -> dict[str, Any]:
        """By dotted key."""
        sections = self.session.settings if self.session is not None else {}
        return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}

    @property
    def validation_losses(self) -> dict[int, float]:
        """By step."""
        return {row.step: row.loss for row in self.metrics.rows if isinstance(row, ValidationRow)}


@dataclass(frozen=True)
class Figure:
    """One figure of every run."""

    name: str
    values: tuple[float | None, ...]
    texts: tuple[str, ...]
    best: frozenset[int]
    """Places of the better ones; empty where none is, or where better is not defined."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    runs: Sequence[ComparedRun]
    figures: Sequence[Figure]
    differences: Mapping[str, Sequence[str]]
    """Settings and facts that are not the same in all runs, by key."""
    remarks: Sequence[str]
    """What a reader must know before believing a figure."""


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """The runs in these folders, named A, B, C, ... in this order.

    Raises:
        NotARunError: one of them is not the folder of a run that has trained, or one is given twice.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise NotARunError("A run must be given once, but two of the folders are the same one.")
    runs = []
    for number, path in enumerate(paths):
        file = path / FILE_NAME if path.is_dir() else path
        if not os.path.lexists(file):
            raise NotARunError(f"{path}: {_explain_no_run(path)}")
        metrics = read_metrics(file)
        runs.append(ComparedRun(chr(ord("A") + number), path, metrics, summarise_run(metrics.rows)))
    return runs


def compare_runs(runs: Sequence[ComparedRun]) -> Comparison:
    """All figures of the runs; the better one is marked where a figure has a better side."""
    obstacles = _find_loss_obstacles(runs)
    is_equal_work = len({tuple(str(run.settings.get(key)) for key in _WORK) for run in runs}) == 1
    facts = [_list_facts(run) for run in runs]
    rows = {
        key: [one.get(key, "not there") for one in facts] for key in dict.fromkeys(key for one in facts for key in one)
    }
    return Comparison(
        runs=runs,
        figures=_make_figures(runs, ranks_losses=not obstacles, ranks_steps=is_equal_work),
        differences={key: texts for key, texts in rows.items() if len(set(texts)) > 1},
        remarks=[*_list_remarks(runs, obstacles, is_equal_work)],
    )


def format_comparison(comparison: Comparison) -> str:
    """The comparison for a terminal of 80 columns: who is compared, what to know first, figures, settings that differ."""
    lines = [
        f"{run.name}  {run.path}: {run.summary.stage or UNKNOWN}, {run.summary.mode or UNKNOWN} mode, {run.summary.status}"
        for run in comparison.runs
    ]
    for remark in comparison.remarks:
        lines += textwrap.wrap(
            f"Note  {remark}", WIDTH, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
        )
    for first in range(0, len(comparison.runs), MOST_COLUMNS):
        lines += _list_block(comparison, range(first, min(first + MOST_COLUMNS, len(comparison.runs))))
    return "\n".join(lines)


def format_comparison_json(comparison: Comparison) -> str:
    """Every figure; unknown values are null."""
    content = {
        "runs": [
            {"name": run.name, "path": str(run.path), "summary": dump_summary(run.summary), "settings": run.settings,
             "devices": dict(run.session.devices) if run.session is not None else {}}
            for run in comparison.runs
        ],
        "figures": [
            {"name": figure.name, "values": figure.values, "better": [comparison.runs[place].name for place in sorted(figure.best)]}
            for figure in comparison.figures
        ],
        "differences": comparison.differences,
        "remarks": comparison.remarks,
    }  # fmt: skip
    return json.dumps(name_infinities(content), ensure_ascii=False, allow_nan=False, indent=1)


def format_comparison_page(comparison: Comparison) -> str:
    """The page."""
    title = f"{len(comparison.runs)} runs side by side"
    return render_page("comparison.html", title=title, comparison=comparison)


def _explain_no_run(path: Path) -> str:
    if not path.exists():
        return "there is nothing with this name. Give the folder of a run, its --checkpoint-dir."
    inside = sorted(child.parent.name for child in path.glob(f"*/{FILE_NAME}")) if path.is_dir() else []
    if inside:
        return f"is not a run, but holds some: {', '.join(inside)}. Give those."
    return f"is not a run: it has no {FILE_NAME}. Give the --checkpoint-dir of a run that has trained."


def _find_loss_obstacles(runs: Sequence[ComparedRun]) -> list[str]:
    """Why the losses of these runs do not mean the same; empty when they do."""
    if len({run.summary.stage for run in runs}) > 1:
        return [f"they are of different stages ({', '.join(run.summary.stage or UNKNOWN for run in runs)})"]
    return [reason for key, reason in _OBSTACLES.items() if len({str(run.settings.get(key)) for run in runs}) > 1]


def _list_facts(run: ComparedRun) -> dict[str, str]:
    session = run.session
    if session is None:
        return {}
    facts = {"stage": session.stage, "mode": session.mode}
    facts |= {f"{role} device": device for role, device in session.devices.items()}
    facts |= {key: str(value) for key, value in run.settings.items() if key not in _IRRELEVANT}
    return facts | {f"environment {key}": str(value) for key, value in session.environment.items()}


def _list_remarks(runs: Sequence[ComparedRun], obstacles: Sequence[str], is_equal_work: bool) -> Iterator[str]:
    for run in runs:
        status, steps = run.summary.status, format_count(run.summary.step)
        if status != "finished":
            why = "it still runs, or was killed" if status == RUNNING else status
            yield f"{run.name} is unfinished ({why}): its figures are of the {steps} steps so far."
    if obstacles:
        yield f"No loss is called better: {'; '.join(obstacles)}."
    if not is_equal_work:
        yield "No step time is called better: a step is not the same work (batch, accumulation or model differ)."
    for run in runs:
        if run.metrics.unreadable:
            yield f"{run.name}: {run.metrics.unreadable} lines of its metrics file could not be read."


def _make_figures(runs: Sequence[ComparedRun], *, ranks_losses: bool, ranks_steps: bool) -> list[Figure]:
    loss = min if ranks_losses else None
    lower, higher = (min, max) if len({run.summary.stage for run in runs}) == 1 else (None, None)
    step_time = lower if ranks_steps else None
    step = min(run.summary.step for run in runs)
    common = max(set.intersection(*(set(run.validation_losses) for run in runs)), default=None)
    figures: list[Figure] = []

    def add(name: str, read: Callable[[ComparedRun], float | None], show: Callable[[Any], str], better: Any) -> None:
        values = tuple(map(read, runs))
        if any(value is not None for value in values):
            texts = tuple(map(show, values))
            figures.append(Figure(name, values, texts, _find_best(values, texts, better)))

    add("steps", lambda run: run.summary.step, format_count, None)
    add("time", lambda run: run.summary.elapsed_s, format_duration, None)
    add(f"train loss at {step}", lambda run: _find_loss(run, step), format_number, loss)
    if common is not None:
        add(f"val loss at {common}", lambda run: run.validation_losses[common], format_number, loss)
    add(
        "best val loss", lambda run: run.summary.best_validation and run.summary.best_validation[1], format_number, loss
    )
    add("step time p50", lambda run: run.summary.times and run.summary.times.p50_s, format_step_time, step_time)
    add("step time p95", lambda run: run.summary.times and run.summary.times.p95_s, format_step_time, step_time)
    add("variation", lambda run: run.summary.times and run.summary.times.variation, format_share, lower)
    add("clips per s", lambda run: run.summary.clips_per_s, lambda rate: format_number(rate, 3), higher)
    add("audio-s per s", lambda run: run.summary.audio_seconds_per_s, lambda rate: format_number(rate, 3), higher)
    add("goodput", lambda run: run.summary.goodput, format_share, higher)
    add("data stall", lambda run: run.summary.data_stall, format_share, lower)
    add("padding", lambda run: run.summary.padding_waste, format_share, lower)
    add("retraces", lambda run: run.summary.retraces, format_count, lower)
    add("memory, data", lambda run: _find_memory(run, "data"), format_bytes, lower)
    add("memory, model", lambda run: _find_memory(run, "model"), format_bytes, lower)
    return figures


def _find_best(values: Sequence[float | None], texts: Sequence[str], better: Any) -> frozenset[int]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if better is None or len(known) < 2:
        return frozenset()
    shown = texts[values.index(better(known))]
    # What reads the same is not called better.
    winners = frozenset(number for number, text in enumerate(texts) if text == shown)
    return winners if len(winners) < len(values) else frozenset()


def _find_loss(run: ComparedRun, step: int) -> float | None:
    """The last training loss up to a step."""
    rows = (row for row in reversed(run.metrics.rows) if isinstance(row, TrainRow) and row.step <= step)
    return next((row.loss for row in rows), None)


def _find_memory(run: ComparedRun, role: str) -> int | None:
    """The most a role's device held, in bytes."""
    uses = [use for row in run.metrics.rows if isinstance(row, TrainRow) for use in row.memory]
    sizes = [use.used_bytes for use in uses if use.device.startswith(role) and use.used_bytes is not None]
    return max(sizes, default=None)


def _list_block(comparison: Comparison, columns: range) -> Iterator[str]:
    """The tables of some of the runs."""
    width = min(20, (WIDTH - NAME_WIDTH) // len(columns))

    def row(name: str, cells: Sequence[str], marked: frozenset[int] = frozenset()) -> str:
        parts = [f"{cells[n]}{_MARK if n in marked else _BLANK}" for n in columns]
        return (f"{name:<{NAME_WIDTH}}" + "".join(f"{part:>{width}}" for part in parts)).rstrip()

    names = [run.name for run in comparison.runs]
    yield ""
    yield row("", names)
    yield from (row(figure.name, figure.texts, figure.best) for figure in comparison.figures)
    if any(figure.best for figure in comparison.figures):
        yield "* the better one"
    if comparison.differences:
        yield ""
        yield row("what differs", names)
    for key, texts in comparison.differences.items():
        # The end of a text that is too long: paths differ there.
        room = width - len(_BLANK) - 1
        cells = [text if len(text) <= room else f"...{text[3 - room :]}" for text in texts]
        # One line where everything fits; else the key above its values.
        if len(key) >= NAME_WIDTH:
            yield key
        yield row("" if len(key) >= NAME_WIDTH else key, cells)
