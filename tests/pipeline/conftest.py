"""Whatever a test of this room does: no thread, process, descriptor or shared memory survives it."""

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest


def list_descriptors():
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            # The one this function looked through.
            continue
    return sorted(names)


def list_children():
    """What each thread of this process has started."""
    children = []
    for path in Path("/proc/self/task").glob("*/children"):
        # A thread that has ended meanwhile has none.
        with suppress(FileNotFoundError, ProcessLookupError):
            children.append(path.read_text())
    return sorted(children)


def list_what_is_there():
    """Threads, children, descriptors and shared memory of this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "threads": sorted(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        "children": list_children(),
        "descriptors": list_descriptors(),
        "shared memory": [line for line in maps if "memfd:myxtts" in line],
    }


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = list_what_is_there()
    yield
    if list_what_is_there() != before:
        # Views of slots may hang in cycles; those are not left behind.
        gc.collect()
    after = list_what_is_there()
    # A thread that was there before, such as the test runner's own, may have ended.
    assert set(after.pop("threads")) <= set(before.pop("threads"))
    assert "".join(after.pop("children")) == "".join(before.pop("children")) == ""
    assert after == before
