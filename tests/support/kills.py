"""Killing a process at a chosen line of the program, to look at what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Any


def run_killed(action: Callable[[], object], prepare: Callable[[], None]) -> bool:
    """Runs an action in a child that `prepare` has made to die at some point; False when it ended before that."""
    child = os.fork()
    if child == 0:
        prepare()
        action()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def kill_before_line(point: int, watched: Collection[str | None]) -> None:
    """Makes this process die before the n-th line that it executes in the watched files."""
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in watched:
            return None
        if event == "line":
            if lines == point:
                os.kill(os.getpid(), signal.SIGKILL)
            lines += 1
        return trace

    sys.settrace(trace)
