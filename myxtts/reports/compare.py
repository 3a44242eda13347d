"""Runs side by side: figures, which of them is the better one, and settings that differ. Their curves are TensorBoard's."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.monitoring import words
from myxtts.monitoring.errors import NotARunError
from myxtts.monitoring.metrics_log import FILE_NAME, Metrics, read_metrics
from myxtts.monitoring.metrics_rows import RunRow, TrainRow, ValidationRow, name_infinities
from myxtts.monitoring.run_summary import RUNNING, RunSummary, dump_summary, summarise_run
from myxtts.reports.pages import render_page

WIDTH, NAME_WIDTH = 80, 22
MOST_COLUMNS = 4
"""Runs that stand beside each other in a terminal; more follow below."""
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

    @cached_property
    def session(self) -> RunRow | None:
        """Its last start."""
        return next((row for row in reversed(self.metrics.rows) if isinstance(row, RunRow)), None)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """By dotted key."""
        sections = self.session.settings if self.session is not None else {}
        return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}

    @cached_property
    def validation_losses(self) -> dict[int, float]:
        """By step."""
        return {row.step: row.loss for row in self.metrics.rows if isinstance(row, ValidationRow)}

    def list_facts(self) -> dict[str, str]:
        """What may differ, in words."""
        if self.session is None:
            return {}
        facts = {"stage": self.session.stage, "mode": self.session.mode}
        facts |= {f"{role} device": device for role, device in self.session.devices.items()}
        facts |= {key: str(value) for key, value in self.settings.items() if key not in _IRRELEVANT}
        return facts | {f"environment {key}": str(value) for key, value in self.session.environment.items()}

    def find_loss(self, step: int) -> float | None:
        """The last training loss up to a step."""
        rows = (row for row in reversed(self.metrics.rows) if isinstance(row, TrainRow) and row.step <= step)
        return next((row.loss for row in rows), None)

    def find_memory(self, role: str) -> int | None:
        """The most a role's device held, in bytes."""
        uses = [use for row in self.metrics.rows if isinstance(row, TrainRow) for use in row.memory]
        sizes = [use.used_bytes for use in uses if use.device.startswith(role) and use.used_bytes is not None]
        return max(sizes, default=None)


class Figure(NamedTuple):
    """One figure of every run."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    best: frozenset[int]
    """Places of the better ones; empty where none is, or where better is not defined."""


class Comparison(NamedTuple):
    """What a comparison found."""

    runs: Sequence[ComparedRun]
    figures: Sequence[Figure]
    differences: Mapping[str, Sequence[str]]
    """Settings and facts that are not the same in all runs, by key."""
    remarks: Sequence[str]
    """What a reader must know before believing a figure."""


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """All figures of the runs in these folders, which are named A, B, C, ...; the better one is marked where one is better.

    Raises:
        NotARunError: one of them is not the folder of a run that has trained, or one is given twice.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise NotARunError("A run must be given once, but two of the folders are the same one.")
    runs = [_read_run(chr(ord("A") + number), path) for number, path in enumerate(paths)]
    obstacles = [reason for key, reason in _OBSTACLES.items() if len({str(run.settings.get(key)) for run in runs}) > 1]
    if len({run.summary.stage for run in runs}) > 1:
        obstacles = [f"they are of different stages ({', '.join(run.summary.stage or words.UNKNOWN for run in runs)})"]
    is_equal_work = len({tuple(str(run.settings.get(key)) for key in _WORK) for run in runs}) == 1
    facts = [run.list_facts() for run in runs]
    texts = {key: [one.get(key, "not there") for one in facts] for one in facts for key in one}
    return Comparison(
        runs,
        _make_figures(runs, ranks_losses=not obstacles, ranks_steps=is_equal_work),
        {key: each for key, each in texts.items() if len(set(each)) > 1},
        [*_list_remarks(runs, obstacles, is_equal_work)],
    )


def format_comparison(comparison: Comparison) -> str:
    """The comparison for a terminal of 80 columns: who is compared, what to know first, figures, settings that differ."""
    lines = [
        f"{run.name}  {run.path}: {run.summary.stage or words.UNKNOWN}, {run.summary.mode or words.UNKNOWN} mode, {run.summary.status}"
        for run in comparison.runs
    ]
    for remark in comparison.remarks:
        lines += words.wrap_titled("Note", remark, indent=6, breaks_words=False)
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


def _read_run(name: str, path: Path) -> ComparedRun:
    file = path / FILE_NAME if path.is_dir() else path
    if os.path.lexists(file):
        metrics = read_metrics(file)
        return ComparedRun(name, path, metrics, summarise_run(metrics.rows))
    if not path.exists():
        raise NotARunError(f"{path}: there is nothing with this name. Give the folder of a run, its --checkpoint-dir.")
    inside = sorted(child.parent.name for child in path.glob(f"*/{FILE_NAME}"))
    if inside:
        raise NotARunError(f"{path}: is not a run, but holds some: {', '.join(inside)}. Give those.")
    raise NotARunError(
        f"{path}: is not a run: it has no {FILE_NAME}. Give the --checkpoint-dir of a run that has trained."
    )


def _list_remarks(runs: Sequence[ComparedRun], obstacles: Sequence[str], is_equal_work: bool) -> Iterator[str]:
    for run in runs:
        status, steps = run.summary.status, words.format_count(run.summary.step)
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
    """Those that are known of any run."""
    summaries = [run.summary for run in runs]
    times = [summary.times for summary in summaries]
    step = min(summary.step for summary in summaries)
    common = max(set.intersection(*(set(run.validation_losses) for run in runs)), default=-1)
    loss = min if ranks_losses else None
    lower, higher = (min, max) if len({summary.stage for summary in summaries}) == 1 else (None, None)
    step_time = lower if ranks_steps else None
    table: list[tuple[str, Sequence[float | None], Callable[[Any], str], Any]] = [
        ("steps", [each.step for each in summaries], words.format_count, None),
        ("time", [each.elapsed_s for each in summaries], words.format_duration, None),
        (f"train loss at {step}", [run.find_loss(step) for run in runs], words.format_number, loss),
        (f"val loss at {common}", [run.validation_losses.get(common) for run in runs], words.format_number, loss),
        ("best val loss", [each.best_validation[1] if each.best_validation else None for each in summaries], words.format_number, loss),
        ("step time p50", [each.p50_s if each else None for each in times], words.format_step_time, step_time),
        ("step time p95", [each.p95_s if each else None for each in times], words.format_step_time, step_time),
        ("variation", [each.variation if each else None for each in times], words.format_share, lower),
        ("clips per s", [each.clips_per_s for each in summaries], partial(words.format_number, digits=3), higher),
        ("audio-s per s", [each.audio_seconds_per_s for each in summaries], partial(words.format_number, digits=3), higher),
        ("goodput", [each.goodput for each in summaries], words.format_share, higher),
        ("data stall", [each.data_stall for each in summaries], words.format_share, lower),
        ("padding", [each.padding_waste for each in summaries], words.format_share, lower),
        ("retraces", [each.retraces for each in summaries], words.format_count, lower),
        ("memory, data", [run.find_memory("data") for run in runs], words.format_bytes, lower),
        ("memory, model", [run.find_memory("model") for run in runs], words.format_bytes, lower),
    ]  # fmt: skip
    return [
        Figure(name, values, texts, _find_best(values, texts, better))
        for name, values, show, better in table
        if any(value is not None for value in values) and (texts := [show(value) for value in values])
    ]


def _find_best(values: Sequence[float | None], texts: Sequence[str], better: Any) -> frozenset[int]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if better is None or len(known) < 2:
        return frozenset()
    shown = texts[values.index(better(known))]
    # What reads the same is not called better.
    winners = frozenset(number for number, text in enumerate(texts) if text == shown)
    return winners if len(winners) < len(values) else frozenset()


def _list_block(comparison: Comparison, columns: range) -> Iterator[str]:
    """The tables of some of the runs."""
    width = min(20, (WIDTH - NAME_WIDTH) // len(columns))

    def row(name: str, cells: Sequence[str], marked: frozenset[int] = frozenset()) -> str:
        parts = [f"{cells[n]}{' *' if n in marked else '  '}" for n in columns]
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
        room = width - 3
        cells = [text if len(text) <= room else f"...{text[3 - room :]}" for text in texts]
        # One line where everything fits; else the key above its values.
        if len(key) >= NAME_WIDTH:
            yield key
        yield row("" if len(key) >= NAME_WIDTH else key, cells)
