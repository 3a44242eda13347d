"""Keeping an old run aside, in `previous-run-1`, `previous-run-2` ... of its own folder.

Inside the folder and not beside it: a folder that is a mounted volume cannot be renamed. Its entries move one by one into a
hidden directory, `run.json` last, and that directory gets its name at the end; a move that was interrupted is completed
by whoever opens the folder next.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from myxtts.training.errors import RunFolderError
from myxtts.training.run_lock import LOCK_NAME
from myxtts.training.run_record import RECORD_NAME, RunRecord, read_record

_log = logging.getLogger(__name__)

_KEPT = re.compile(r"previous-run-(\d+)")
_MOVING = re.compile(r"\.previous-run-(\d+)\.moving")
_CHECKPOINTS = re.compile(r"(damaged-|newer-)?step-\d+(-\d+)?|checkpoints\.json|run\.json")


def keep_run_aside(folder: Path) -> Path | None:
    """Moves the run in a folder aside and returns where it is now; None where there was none.

    What was in the folder before the run stays, as do older runs. Without a readable `run.json` nobody knows what else is
    the run's, and only checkpoints are moved.
    """
    entries = _list_entries(folder)
    if not entries or _has_not_begun(folder, entries):
        return None
    numbers = [int(match[1]) for match in map(_KEPT.fullmatch, _list_names(folder)) if match]
    moving = folder / f".previous-run-{max(numbers, default=0) + 1}.moving"
    try:
        moving.mkdir()
        return _complete(folder, moving)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: the old run cannot be kept aside ({error}). Move it away yourself, or give another --checkpoint-dir."
        ) from error


def complete_interrupted_move(folder: Path) -> None:
    """Completes what a killed `keep_run_aside` began."""
    for name in _list_names(folder):
        if _MOVING.fullmatch(name):
            _complete(folder, folder / name)


def list_foreign(folder: Path) -> tuple[str, ...]:
    """Names of what is in a folder in which no run has begun yet, apart from older runs."""
    return tuple(name for name in _list_names(folder) if not _is_of_older_runs(name))


def _is_of_older_runs(name: str) -> bool:
    # The lock is none run's own: whoever moves the others holds it.
    return name == LOCK_NAME or bool(_KEPT.fullmatch(name) or _MOVING.fullmatch(name))


def _has_not_begun(folder: Path, entries: list[str]) -> bool:
    """Whether a run stopped before it trained anything, as when its data were not found: nothing to keep."""
    record = _read_readable_record(folder)
    is_trained = any(_CHECKPOINTS.fullmatch(name) and name != RECORD_NAME for name in entries)
    has_inner_run = any((folder / name / RECORD_NAME).is_file() for name in entries)
    return record is not None and not record.starts and not is_trained and not has_inner_run


def _complete(folder: Path, moving: Path) -> Path:
    for name in _list_entries(folder):
        (folder / name).rename(moving / name)
    match = _MOVING.fullmatch(moving.name)
    assert match
    kept = folder / f"previous-run-{match[1]}"
    moving.rename(kept)
    _log.info("The run that was in %s is kept in %s.", folder, kept)
    return kept


def _list_entries(folder: Path) -> list[str]:
    """Names of what is the run's in a folder, `run.json` last."""
    record = _read_readable_record(folder)
    names = [name for name in _list_names(folder) if not _is_of_older_runs(name)]
    if record is None:
        found = [name for name in names if _CHECKPOINTS.fullmatch(name) or (folder / name / RECORD_NAME).is_file()]
    else:
        found = [name for name in names if name not in record.foreign]
    return sorted(found, key=lambda name: (name == RECORD_NAME, name))


def _read_readable_record(folder: Path) -> RunRecord | None:
    try:
        return read_record(folder)
    except RunFolderError:
        return None


def _list_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
