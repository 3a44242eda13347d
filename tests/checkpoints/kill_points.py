"""Kills a writer with SIGKILL before every line it executes, and looks at what is left. For a process of its own."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from myxtts.checkpoints import atomic_directory
from myxtts.checkpoints.atomic_directory import open_file_atomically, recover_directory, write_directory_atomically
from tests.support.kills import kill_before_line, run_killed

NAMES = ("a.bin", "b.bin", "sub/c.bin")
WATCHED = (atomic_directory.__file__, shutil.__file__, __file__)


def write_version(target: Path, version: int) -> None:
    def write(directory: Path) -> None:
        (directory / "sub").mkdir()
        for name in NAMES:
            with open(directory / name, "wb") as handle:
                handle.write(bytes([version]) * 1000)
                handle.write(bytes([version]) * 1000)

    write_directory_atomically(target, write)


def read_version(target: Path) -> int | str:
    """The version of a whole directory, or what is wrong with it."""
    if not target.exists():
        return "absent"
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    if found != sorted(NAMES):
        return f"has {found}"
    contents = {(target / name).read_bytes() for name in NAMES}
    versions = {content[0] for content in contents}
    return versions.pop() if contents == {bytes([max(versions)]) * 2000} else "torn"


def write_file_version(target: Path, version: int) -> None:
    with open_file_atomically(target) as handle:
        handle.write(bytes([version]) * 1000)
        handle.write(bytes([version]) * 1000)


def read_file_version(target: Path) -> int | str:
    if not target.exists():
        return "absent"
    content = target.read_bytes()
    return content[0] if content == content[:1] * 2000 else "torn"


def kill_everywhere(folder: Path, kind: str, *, replace: bool, exchange: bool = True) -> dict[str, Any]:
    """What was found after each kill: the states, before and after recovery, and how many kills there were."""
    # A kill loses nothing that was handed to the kernel; flushing would only make this slow.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    if not exchange:
        atomic_directory._exchange_names = lambda first, second: False
    write, read = {"directory": (write_version, read_version), "file": (write_file_version, read_file_version)}[kind]
    target = folder / "target"
    states: dict[str, int] = {}
    recovered: dict[str, int] = {}
    point = 0
    while True:
        _remove(target)
        if replace:
            write(target, 1)
        was_killed = run_killed(lambda: write(target, 2), partial(kill_before_line, point, WATCHED))
        if not was_killed:
            break
        state = str(read(target))
        states[state] = states.get(state, 0) + 1
        recover_directory(target)
        state = str(read(target))
        recovered[state] = recovered.get(state, 0) + 1
        leftovers = [entry.name for entry in folder.iterdir() if entry != target]
        assert leftovers == [], leftovers
        point += 1
    return {"kills": point, "states": states, "recovered": recovered, "final": read(target)}


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
