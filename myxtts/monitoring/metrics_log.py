"""The metrics file of a run, `metrics.jsonl`: one JSON object per line, appended as it happens; the source of truth."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from myxtts.files import FileError, iter_lines, open_file_atomically, parse_json
from myxtts.monitoring.errors import MetricsFileError, MetricsWriteError
from myxtts.monitoring.metrics_rows import Row, RunRow, SummaryRow, TrainRow, ValidationRow, dump_row, load_row
from myxtts.monitoring.time_ledger import measure_elapsed

FILE_NAME = "metrics.jsonl"
LOG_NAME = "run.log"
"""Of what a run says, beside its metrics."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metrics:
    """The rows of a run, in the order in which they were written."""

    rows: tuple[Row, ...]
    unreadable: int
    """Lines that are no rows: one torn by a crash, or damage."""


class MetricsLog:
    """Appends rows to a metrics file. Each is with the operating system before `write` returns, so no kill loses it."""

    def __init__(self, path: Path):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a row is one write, and a killed process leaves at most its last line torn.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by `close`
        self._good_bytes = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, row: Row) -> None:
        """Appends a row. Raises `MetricsWriteError` when it cannot be written whole; then nothing of it is."""
        line = json.dumps(dump_row(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            self._file.truncate(self._good_bytes)
            raise MetricsWriteError(
                f"{self._path}: a row could not be written ({error}). Make room on that disk, then resume the run."
            ) from error
        self._good_bytes += len(line)

    def close(self) -> None:
        self._file.close()


def open_metrics_log(
    path: Path, resumed_step: int | None = None, *, is_validated: bool = True
) -> tuple[MetricsLog, float]:
    """The log of a run that starts anew, or is resumed with so many updates done, and the time in seconds that rows had booked
    which a resume took away: it bought steps that are now done again.

    On resume, rows after that step and lines torn by a crash are cut away, in one step: whatever happens, the file is the
    old one or the new one. A new run begins with an empty file. Where that step's validation is to be done again
    (`is_validated`), its row is cut away too.
    """
    lost_s = 0.0
    if resumed_step is None:
        path.unlink(missing_ok=True)
    elif path.exists():
        lost_s = _cut_metrics(path, resumed_step, is_validated)
    return MetricsLog(path), lost_s


def _cut_metrics(path: Path, step: int, is_validated: bool) -> float:
    """Removes rows after a step, and what is no row; the time that was booked in them."""
    kept: list[bytes] = []
    lost_s, unreadable, is_cut = 0.0, 0, False
    for line, row in _read_lines(path):
        if row is None:
            unreadable += 1
        elif row.step > step or (isinstance(row, ValidationRow) and row.step == step and not is_validated):
            is_cut = True
            if isinstance(row, TrainRow | SummaryRow):
                lost_s += measure_elapsed(row.spent)
            elif isinstance(row, RunRow):
                lost_s += row.lost_s
        else:
            kept.append(line)
    if unreadable or is_cut:
        with open_file_atomically(path) as file:
            file.writelines(kept)
    if unreadable:
        _log.warning("%s: %d unreadable lines were removed.", path, unreadable)
    return lost_s


def read_metrics(path: Path) -> Metrics:
    """The rows of a metrics file of a finished, a stopped or a running run."""
    rows = [row for _, row in _read_lines(path)]
    good = tuple(row for row in rows if row is not None)
    if not good:
        raise MetricsFileError(f"{path}: holds no rows of a run (yet).")
    return Metrics(good, len(rows) - len(good))


def list_losses(metrics: Metrics) -> list[tuple[int, float]]:
    """The loss of every step: pairs of updates done and loss."""
    trained = [row for row in metrics.rows if isinstance(row, TrainRow)]
    return [pair for row in trained for pair in enumerate(row.losses, start=row.step - len(row.losses) + 1)]


def _read_lines(path: Path) -> Iterator[tuple[bytes, Row | None]]:
    """Every line with its row, None where it is none. A last line without its end counts as torn."""
    try:
        for line in iter_lines(path):
            row = None
            if line.endswith(b"\n"):
                with suppress(ValueError):
                    row = load_row(parse_json(line))
            yield line, row
    except FileError as error:
        raise MetricsFileError(f"{error} Give the folder of a run that has trained.") from error
