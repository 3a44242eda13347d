"""Runs side by side: figures, which of them is the better one, and settings that differ. Their curves are TensorBoard's."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from myxtts.errors import NotARunError
from myxtts.monitoring.metrics import FILE_NAME, RunRow, TrainRow, ValidationRow, name_infinities, read_metrics
from myxtts.monitoring.summary import RUNNING, RunSummary, dump_summary, summarise_run
from myxtts.reports.pages import render_page
from myxtts.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_share,
    format_step_time,
    wrap_titled,
)

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
    summary: RunSummary
    session: RunRow | None
    """Its last start."""
    trains: Sequence[TrainRow]
    validation_losses: Mapping[int, float]
    """By step."""
    unreadable: int

    @cached_property
    def settings(self) -> dict[str, Any]:
        """By dotted key."""
        sections = self.session.settings if self.session is not None else {}
        return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}

    def list_facts(self) -> dict[str, str]:
        """What may differ, in words."""
        if self.session is None:
            return {}
        facts = {"stage": self.session.stage, "mode": self.session.mode}
        facts |= {f"{role} device": device for role, device in self.session.devices.items()}
        facts |= {key: str(value) for key, value in self.settings.items() if key not in _IRRELEVANT}
        return facts | {f"environment {key}": str(value) for key, value in self.session.environment.items()}

    def find_memory(self, role: str) -> int | None:
        """The most a role's device held, in bytes."""
        uses = [use for row in self.trains for use in row.memory if use.device.startswith(role)]
        return max((use.used_bytes for use in uses if use.used_bytes is not None), default=None)


def compare_runs(paths: Sequence[Path]) -> dict[str, Any]:
    """All figures of the runs in these folders, which are named A, B, C, ...; the better one is named where one is better.

    Raises:
        NotARunError: one of them is not the folder of a run that has trained, or one is given twice.

    Returns:
        JSON values, with None for what is unknown: `runs`; `figures`, each with its `values`, their `texts` and the `better` runs;
        `differences`, settings and facts that are not the same in all runs; `remarks`, what a reader must know before believing a figure.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise NotARunError("A run must be given once, but two of the folders are the same one.")
    runs = [_read_run(chr(ord("A") + number), path) for number, path in enumerate(paths)]
    obstacles = [reason for key, reason in _OBSTACLES.items() if len({str(run.settings.get(key)) for run in runs}) > 1]
    if len({run.summary.stage for run in runs}) > 1:
        obstacles = [f"they are of different stages ({', '.join(run.summary.stage or UNKNOWN for run in runs)})"]
    is_equal_work = len({tuple(str(run.settings.get(key)) for key in _WORK) for run in runs}) == 1
    facts = [run.list_facts() for run in runs]
    texts = {key: [one.get(key, "not there") for one in facts] for one in facts for key in one}
    return {
        "runs": [
            {"name": run.name, "path": str(run.path), "summary": dump_summary(run.summary), "settings": run.settings,
             "devices": dict(run.session.devices) if run.session is not None else {}}
            for run in runs
        ],
        "figures": _make_figures(runs, ranks_losses=not obstacles, ranks_steps=is_equal_work),
        "differences": {key: each for key, each in texts.items() if len(set(each)) > 1},
        "remarks": [*_list_remarks(runs, obstacles, is_equal_work)],
    }  # fmt: skip


def format_comparison(comparison: Mapping[str, Any]) -> str:
    """The comparison for a terminal of 80 columns: who is compared, what to know first, figures, settings that differ."""
    lines, count = [], len(comparison["runs"])
    for run in comparison["runs"]:
        stage, mode = (run["summary"][key] or UNKNOWN for key in ("stage", "mode"))
        lines.append(f"{run['name']}  {run['path']}: {stage}, {mode} mode, {run['summary']['status']}")
    for remark in comparison["remarks"]:
        lines += wrap_titled("Note", remark, indent=6, breaks_words=False)
    for first in range(0, count, MOST_COLUMNS):
        lines += _list_block(comparison, range(first, min(first + MOST_COLUMNS, count)))
    return "\n".join(lines)


def format_comparison_json(comparison: Mapping[str, Any]) -> str:
    return json.dumps(name_infinities(comparison), ensure_ascii=False, allow_nan=False, indent=1)


def format_comparison_page(comparison: Mapping[str, Any]) -> str:
    return render_page("comparison.html", title=f"{len(comparison['runs'])} runs side by side", comparison=comparison)


def _read_run(name: str, path: Path) -> ComparedRun:
    file = path / FILE_NAME if path.is_dir() else path
    if os.path.lexists(file):
        metrics = read_metrics(file)
        rows = metrics.rows
        session = next((row for row in reversed(rows) if isinstance(row, RunRow)), None)
        losses = {row.step: row.loss for row in rows if isinstance(row, ValidationRow)}
        trains = [row for row in rows if isinstance(row, TrainRow)]
        return ComparedRun(name, path, summarise_run(rows), session, trains, losses, metrics.unreadable)
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
        status, steps = run.summary.status, format_count(run.summary.step)
        if status != "finished":
            why = "it still runs, or was killed" if status == RUNNING else status
            yield f"{run.name} is unfinished ({why}): its figures are of the {steps} steps so far."
    if obstacles:
        yield f"No loss is called better: {'; '.join(obstacles)}."
    if not is_equal_work:
        yield "No step time is called better: a step is not the same work (batch, accumulation or model differ)."
    for run in runs:
        if run.unreadable:
            yield f"{run.name}: {run.unreadable} lines of its metrics file could not be read."


def _make_figures(runs: Sequence[ComparedRun], *, ranks_losses: bool, ranks_steps: bool) -> list[dict[str, Any]]:
    """Those that are known of any run."""
    summaries = [run.summary for run in runs]
    times = [summary.times for summary in summaries]
    step = min(summary.step for summary in summaries)
    common = max(set.intersection(*(set(run.validation_losses) for run in runs)), default=-1)
    train_losses = [next((row.loss for row in reversed(run.trains) if row.step <= step), None) for run in runs]
    loss = min if ranks_losses else None
    lower, higher = (min, max) if len({summary.stage for summary in summaries}) == 1 else (None, None)
    step_time = lower if ranks_steps else None
    table: list[tuple[str, Sequence[float | None], Callable[[Any], str], Any]] = [
        ("steps", [each.step for each in summaries], format_count, None),
        ("time", [each.elapsed_s for each in summaries], format_duration, None),
        (f"train loss at {step}", train_losses, format_number, loss),
        (f"val loss at {common}", [run.validation_losses.get(common) for run in runs], format_number, loss),
        ("best val loss", [each.best_validation[1] if each.best_validation else None for each in summaries], format_number, loss),
        ("step time p50", [each.p50_s if each else None for each in times], format_step_time, step_time),
        ("step time p95", [each.p95_s if each else None for each in times], format_step_time, step_time),
        ("variation", [each.variation if each else None for each in times], format_share, lower),
        ("clips per s", [each.clips_per_s for each in summaries], partial(format_number, digits=3), higher),
        ("audio-s per s", [each.audio_seconds_per_s for each in summaries], partial(format_number, digits=3), higher),
        ("goodput", [each.goodput for each in summaries], format_share, higher),
        ("data stall", [each.data_stall for each in summaries], format_share, lower),
        ("padding", [each.padding_waste for each in summaries], format_share, lower),
        ("retraces", [each.retraces for each in summaries], format_count, lower),
        ("memory, data", [run.find_memory("data") for run in runs], format_bytes, lower),
        ("memory, model", [run.find_memory("model") for run in runs], format_bytes, lower),
    ]  # fmt: skip
    names = [run.name for run in runs]
    return [
        {"name": name, "values": values, "texts": texts, "better": _find_better(names, values, texts, better)}
        for name, values, show, better in table
        if any(value is not None for value in values) and (texts := [show(value) for value in values])
    ]


def _find_better(names: Sequence[str], values: Sequence[float | None], texts: Sequence[str], better: Any) -> list[str]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if better is None or len(known) < 2:
        return []
    shown = texts[values.index(better(known))]
    # What reads the same is not called better.
    winners = [name for name, text in zip(names, texts, strict=True) if text == shown]
    return winners if len(winners) < len(values) else []


def _list_block(comparison: Mapping[str, Any], columns: range) -> Iterator[str]:
    """The tables of some of the runs."""
    width, names = min(20, (WIDTH - NAME_WIDTH) // len(columns)), [run["name"] for run in comparison["runs"]]

    def row(name: str, cells: Sequence[str], marked: Sequence[str] = ()) -> str:
        parts = [f"{cells[n]}{' *' if names[n] in marked else '  '}" for n in columns]
        return (f"{name:<{NAME_WIDTH}}" + "".join(f"{part:>{width}}" for part in parts)).rstrip()

    yield from ("", row("", names))
    yield from (row(figure["name"], figure["texts"], figure["better"]) for figure in comparison["figures"])
    if any(figure["better"] for figure in comparison["figures"]):
        yield "* the better one"
    if comparison["differences"]:
        yield from ("", row("what differs", names))
    for key, texts in comparison["differences"].items():
        # The end of a text that is too long: paths differ there.
        room = width - 3
        cells = [text if len(text) <= room else f"...{text[3 - room :]}" for text in texts]
        # One line where everything fits; else the key above its values.
        if len(key) >= NAME_WIDTH:
            yield key
        yield row("" if len(key) >= NAME_WIDTH else key, cells)
