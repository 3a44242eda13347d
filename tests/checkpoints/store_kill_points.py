"""Kills a process that saves a checkpoint, before any line it executes or in the middle of a write, and looks at the store.

For a process of its own, because it forks.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from myxtts import files
from myxtts.checkpoints import model_directory, safetensors_file, store
from tests.checkpoints.training_states import assert_content, collect_warnings, list_steps, open_store, save
from tests.support.kills import run_killed

WATCHED = tuple(module.__file__ for module in (files, model_directory, safetensors_file, store, shutil))

LOSSES = {10: 1.0, 20: 3.0, 30: 2.0}
NEW_STEP, NEW_LOSS = 40, 4.0
KEPT_BEFORE, KEPT_AFTER = [10, 20, 30], [10, 30, 40]


def kill_in_function(module: str, name: str) -> None:
    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == name and frame.f_globals["__name__"] == module:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    sys.settrace(trace)


def kill_inside_write(point: int, part: float) -> None:
    """Dies when a part of the n-th write has reached the file."""
    real = model_directory.HashedFile.write
    writes = 0

    def write(file: Any, content: bytes | memoryview) -> int:
        nonlocal writes
        if writes == point:
            file._handle.write(content[: int(len(content) * part)])
            file._handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        writes += 1
        return real(file, content)

    model_directory.HashedFile.write = write  # type: ignore[method-assign]


def kill_inside_removal(point: int) -> None:
    """Dies when so many files have been deleted."""
    real = os.unlink
    deleted = 0

    def unlink(*arguments: Any, **options: Any) -> None:
        nonlocal deleted
        if deleted == point:
            os.kill(os.getpid(), signal.SIGKILL)
        deleted += 1
        real(*arguments, **options)

    os.unlink = unlink  # type: ignore[assignment]


def restore(folder: Path, template: Path) -> None:
    if not template.exists():
        store = open_store(template)
        for step, loss in LOSSES.items():
            save(store, step, val_loss=loss)
        assert list_steps(store) == KEPT_BEFORE
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def kill_and_look(folder: Path, prepare: Callable[[], None]) -> int | None:
    """The newest step after a kill, everything about the store having been checked; None when nothing was killed."""
    restore(folder, folder.with_name("template"))
    if not run_killed(lambda: save(open_store(folder), NEW_STEP, val_loss=NEW_LOSS), prepare):
        return None
    store = open_store(folder)
    with collect_warnings() as warnings:
        latest = store.latest()
        assert latest is not None
        assert latest.step in (30, NEW_STEP)
        best = store.best()
        assert best is not None
        assert best.step == 10
        for checkpoint in store.list():
            assert_content(checkpoint)
        steps = list_steps(store)
        assert set(steps) >= {10, 30}
        assert len(steps) >= 3, "never fewer than are to be kept"
        save(store, NEW_STEP, val_loss=NEW_LOSS)
    assert warnings == []
    assert list_steps(store) == KEPT_AFTER
    names = sorted(entry.name for entry in folder.iterdir())
    assert names == ["checkpoints.json", *(f"step-{step:08d}" for step in KEPT_AFTER)], names
    return latest.step


def kill_at(folder: Path, prepares: Iterable[Callable[[], None]]) -> dict[str, Any]:
    """The newest steps found after each kill, counted; ends with the first kill that comes too late."""
    # A kill loses nothing that was handed to the kernel; flushing would only make this slow.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    found: Counter[int] = Counter()
    for prepare in prepares:
        latest = kill_and_look(folder, prepare)
        if latest is None:
            break
        found[latest] += 1
    return {"kills": found.total(), "latest": found}
