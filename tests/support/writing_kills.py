"""Kills a writer with SIGKILL before every line it executes, and looks at what is left. For a process of its own."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from myxtts import files
from myxtts.files import open_file_atomically, open_folder_atomically, recover_folder
from tests.support.kills import kill_before_line, run_killed

NAMES = ("a.bin", "b.bin", "sub/c.bin")
WATCHED = (files.__file__, shutil.__file__, __file__)


def write_version(target: Path, version: int) -> None:
    with open_folder_atomically(target) as folder:
        (folder / "sub").mkdir()
        for name in NAMES:
            with open(folder / name, "wb") as handle:
                handle.write(bytes([version]) * 1000)
                handle.write(bytes([version]) * 1000)


def read_version(target: Path) -> int | str:
    """The version of a whole folder, or what is wrong with it."""
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


def kill_everywhere(folder: Path, kind: str, *, replace: bool) -> dict[str, Any]:
    """What was found after each kill: the states, before and after recovery, and how many kills there were."""
    # A kill loses nothing that was handed to the kernel; flushing would only make this slow.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    write, read = {"folder": (write_version, read_version), "file": (write_file_version, read_file_version)}[kind]
    states: Counter[str] = Counter()
    recovered: Counter[str] = Counter()
    target = folder / "target"
    point = 0
    while True:
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if replace:
            write(target, 1)
        if not run_killed(lambda: write(target, 2), partial(kill_before_line, point, WATCHED)):
            break
        states[str(read(target))] += 1
        recover_folder(folder)
        recovered[str(read(target))] += 1
        leftovers = [entry.name for entry in folder.iterdir() if entry != target]
        assert leftovers == [], leftovers
        point += 1
    return {"kills": point, "states": states, "recovered": recovered, "final": read(target)}
