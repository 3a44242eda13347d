"""Whatever a test of this room does: no thread, process, descriptor or shared memory survives it."""

import gc
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.tiny_run import end_host


def list_what_is_there():
    """Threads, children, descriptors and shared memory of this process."""
    process, maps = psutil.Process(), Path("/proc/self/maps").read_text().splitlines()
    return {
        "threads": sorted(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        "children": [child.pid for child in process.children()],
        "descriptors": process.num_fds(),
        "shared memory": [line for line in maps if "memfd:myxtts" in line],
    }


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    # Tests of other rooms may have begun it in this worker.
    end_host()
    before = list_what_is_there()
    yield
    if list_what_is_there() != before:
        # Views of slots may hang in cycles; those are not left behind.
        gc.collect()
    after = list_what_is_there()
    # A thread that was there before, such as the test runner's own, may have ended.
    assert set(after.pop("threads")) <= set(before.pop("threads"))
    assert after == before
