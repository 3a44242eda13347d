"""Runs side by side as a person reads them: in a terminal of 80 columns, without colour, and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from myxtts.monitoring.compared_run import ComparedRun
from myxtts.monitoring.metrics_rows import name_infinities
from myxtts.monitoring.run_comparison import Comparison, LossTable
from myxtts.monitoring.run_summary import dump_summary
from myxtts.monitoring.words import UNKNOWN, format_count, format_number

WIDTH = 80
NAME_WIDTH = 22
MOST_COLUMNS = 4
"""Runs that stand beside each other; more follow below."""
MARK = " *"
_BLANK = "  "


def format_comparison(comparison: Comparison) -> str:
    """The whole comparison: who is compared, what to know first, figures, losses by step, settings that differ."""
    parts = [_format_runs(comparison.runs), *map(_wrap, comparison.remarks)]
    for first in range(0, len(comparison.runs), MOST_COLUMNS):
        parts += _format_block(comparison, range(first, min(first + MOST_COLUMNS, len(comparison.runs))))
    return "\n".join(parts)


def format_comparison_json(comparison: Comparison) -> str:
    """Everything, with the whole curves; unknown values are null."""
    content = {
        "runs": [_dump_run(run) for run in comparison.runs],
        "figures": [
            {
                "name": figure.name,
                "values": list(figure.values),
                "better": [comparison.runs[number].name for number in sorted(figure.best)],
            }
            for figure in comparison.figures
        ],
        "differences": {difference.key: list(difference.texts) for difference in comparison.differences},
        "remarks": list(comparison.remarks),
    }
    return json.dumps(name_infinities(content), ensure_ascii=False, allow_nan=False, indent=1)


def _format_block(comparison: Comparison, columns: range) -> list[str]:
    """The tables of some of the runs."""
    names = [comparison.runs[number].name for number in columns]
    lines = ["", _row("", names)]
    for figure in comparison.figures:
        cells = [figure.texts[number] + (MARK if number in figure.best else _BLANK) for number in columns]
        lines.append(_row(figure.name, cells))
    if any(figure.best for figure in comparison.figures):
        lines.append("* the better one")
    for table in comparison.tables:
        lines += _format_losses(table, names, columns)
    if comparison.differences:
        lines += ["", _row("what differs", names)]
    for difference in comparison.differences:
        lines += _format_difference(difference.key, [difference.texts[number] for number in columns])
    return lines


def _format_runs(runs: Sequence[ComparedRun]) -> str:
    return "\n".join(
        f"{run.name}  {run.path}: {run.summary.stage or UNKNOWN}, {run.summary.mode or UNKNOWN} mode, {run.summary.status}"
        for run in runs
    )


def _format_losses(table: LossTable, names: Sequence[str], columns: range) -> list[str]:
    lines = ["", _row(f"{table.name}, step", names)]
    for step, losses in zip(table.steps, table.losses, strict=True):
        cells = ["-" if losses[number] is None else format_number(losses[number]) for number in columns]
        lines.append(_row(f"{format_count(step):>{NAME_WIDTH - 2}}", cells))
    return lines


def _format_difference(key: str, texts: Sequence[str]) -> list[str]:
    """One line where everything fits; else the key above its values."""
    room = _measure_column(len(texts)) - len(_BLANK) - 1
    cells = [_shorten(text, room) for text in texts]
    if len(key) < NAME_WIDTH:
        return [_row(key, cells)]
    return [key, _row("", cells)]


def _row(name: str, cells: Sequence[str]) -> str:
    width = _measure_column(len(cells))
    aligned = [cell if cell.endswith((MARK, _BLANK)) else f"{cell}{_BLANK}" for cell in cells]
    return (f"{name:<{NAME_WIDTH}}" + "".join(f"{cell:>{width}}" for cell in aligned)).rstrip()


def _measure_column(columns: int) -> int:
    return min(20, (WIDTH - NAME_WIDTH) // columns)


def _shorten(text: str, room: int) -> str:
    """The end of a text that is too long: paths differ there."""
    return text if len(text) <= room else f"...{text[-(room - 3) :]}"


def _wrap(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="Note  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )


def _dump_run(run: ComparedRun) -> dict[str, Any]:
    session = run.session
    return {
        "name": run.name,
        "path": str(run.path),
        "is_finished": run.is_finished,
        "summary": dump_summary(run.summary),
        "devices": dict(session.devices) if session is not None else {},
        "settings": run.settings,
        "training_losses": run.training_losses,
        "validation_losses": run.validation_losses,
    }
