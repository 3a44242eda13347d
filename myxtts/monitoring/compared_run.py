"""A run that is compared with others: its rows, its summary, its curves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.monitoring.errors import NotARunError
from myxtts.monitoring.metrics_log import FILE_NAME, Metrics, read_metrics
from myxtts.monitoring.metrics_rows import RunRow, TrainRow, ValidationRow
from myxtts.monitoring.run_summary import RunSummary, summarise_run


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
        starts = [row for row in self.metrics.rows if isinstance(row, RunRow)]
        return starts[-1] if starts else None

    @property
    def is_finished(self) -> bool:
        return self.summary.status == "finished"

    @property
    def settings(self) -> dict[str, Any]:
        """By dotted key."""
        sections = self.session.settings if self.session is not None else {}
        return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}

    @property
    def training_losses(self) -> list[tuple[int, float | None]]:
        """Pairs of step and the mean loss of the steps since the pair before."""
        return [(row.step, row.loss) for row in self.metrics.rows if isinstance(row, TrainRow)]

    def find_training_loss(self, step: int) -> float | None:
        """The last training loss up to a step."""
        return next((loss for at, loss in reversed(self.training_losses) if at <= step), None)

    @property
    def validation_losses(self) -> list[tuple[int, float]]:
        return [(row.step, row.loss) for row in self.metrics.rows if isinstance(row, ValidationRow)]


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """The runs in these folders, named A, B, C, ... in this order.

    Raises:
        NotARunError: one of them is not the folder of a run that has trained, or one is given twice.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise NotARunError("A run must be given once, but two of the folders are the same one.")
    return [_read_run(chr(ord("A") + number), path) for number, path in enumerate(paths)]


def _read_run(name: str, path: Path) -> ComparedRun:
    file = path / FILE_NAME if path.is_dir() else path
    if not os.path.lexists(file):
        raise NotARunError(f"{path}: {_explain_no_run(path)}")
    metrics = read_metrics(file)
    return ComparedRun(name, path, metrics, summarise_run(metrics.rows))


def _explain_no_run(path: Path) -> str:
    if not path.exists():
        return "there is nothing with this name. Give the folder of a run, its --checkpoint-dir."
    inside = sorted(child.parent.name for child in path.glob(f"*/{FILE_NAME}")) if path.is_dir() else []
    if inside:
        return f"is not a run, but holds some: {', '.join(inside)}. Give those."
    return f"is not a run: it has no {FILE_NAME}. Give the --checkpoint-dir of a run that has trained."
