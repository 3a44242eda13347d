"""Kills a process with SIGKILL before every line that touches a file of the cache, and in the middle of its writes.

For a process of its own, because it forks.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from myxtts.data.cache import compaction, disk_store, generation, segment
from myxtts.data.cache.compaction import compact_segments
from tests.data_cache.builders import fill, find_clips, list_names, make_key, open_cache, put
from tests.support.kills import kill_before_line, run_killed

# The modules that touch files; the lines of others leave nothing behind that could differ.
WATCHED = tuple(module.__file__ for module in (compaction, disk_store, generation, segment))
CLIPS = range(100)


class SharedCounter:
    """A number that a killed child leaves to its parent."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 8)

    def set(self, value: int) -> None:
        self._page[:8] = value.to_bytes(8, "little")

    def get(self) -> int:
        return int.from_bytes(self._page[:8], "little")


def kill_inside_write(point: int, part: float) -> None:
    real = os.pwrite
    writes = 0

    def write(descriptor: int, content: memoryview, offset: int) -> int:
        nonlocal writes
        if writes == point:
            real(descriptor, content[: int(len(content) * part)], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        writes += 1
        return real(descriptor, content, offset)

    os.pwrite = write  # type: ignore[assignment]


def write_batches(directory: Path, done: SharedCounter) -> None:
    with open_cache(directory) as cache:
        for start in (10, 15):
            put(cache, range(start, start + 5))
            done.set(start + 5)


def restore(directory: Path, segments: tuple[range, ...]) -> None:
    """Makes the directory a cache of just these segments."""
    template = directory.with_name(f"template of {len(segments)}")
    if not template.exists():
        for clips in segments:
            fill(template, clips)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(template, directory)


def check_writer(directory: Path, kill: Callable[[], None]) -> dict[str, Any] | None:
    """What is left of a writer of clips 10 to 20 beside ten others, after it was killed. None when it was not."""
    restore(directory, (range(10),))
    done = SharedCounter()
    done.set(10)
    if not run_killed(lambda: write_batches(directory, done), kill):
        return None
    with open_cache(directory) as cache:
        found = find_clips(cache, CLIPS)
        damaged = cache.stats().damaged
        put(cache, range(20))
        assert find_clips(cache, CLIPS) == set(range(20))
    assert found >= set(range(done.get())), "what was put before the kill is there"
    assert damaged == 0
    folder = directory / make_key().folder_name
    fill(directory, [50])
    compact_segments(folder)
    with open_cache(directory) as cache:
        assert find_clips(cache, CLIPS) == {*range(20), 50}
    assert len([name for name in list_names(folder) if not name.endswith(".tmp")]) == 3, list_names(folder)
    return {"done": done.get(), "found": len(found)}


def check_compaction(directory: Path, kill: Callable[[], None]) -> dict[str, Any] | None:
    """What is left of three segments when the process that merges them is killed. None when it was not."""
    restore(directory, (range(1), range(1, 2), range(2, 3)))
    folder = directory / make_key().folder_name
    if not run_killed(lambda: assert_merged(folder), kill):
        return None
    segments = len(list(folder.glob("*.data")))
    with open_cache(directory) as cache:
        assert find_clips(cache, CLIPS) == {0, 1, 2}
        assert cache.stats().damaged == 0
    fill(directory, [50])
    compact_segments(folder)
    with open_cache(directory) as cache:
        assert find_clips(cache, CLIPS) == {0, 1, 2, 50}
    assert len(list_names(folder)) == 3
    return {"segments": segments}


def assert_merged(folder: Path) -> None:
    assert compact_segments(folder) == 3


def kill_everywhere(directory: Path, check: Callable[[Path, Callable[[], None]], Any]) -> list[dict[str, Any]]:
    """What was left after each kill: before every line, then inside every write."""
    # A kill loses nothing that was handed to the kernel; flushing would only make this slow.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    left = []
    while (result := check(directory, lambda: kill_before_line(len(left), WATCHED))) is not None:
        left.append(result)
    for part in (0.01, 0.5, 0.99):
        points = itertools.count()
        while (result := check(directory, functools.partial(kill_inside_write, next(points), part))) is not None:
            left.append(result)
    return left
