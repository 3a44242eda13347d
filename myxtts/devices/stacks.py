"""Where a process of ours hangs: it writes the stacks of its threads when it is asked to, whatever it is doing."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable

STACK_SIGNAL = signal.SIGUSR1
_WRITING_S = 3.0
_LOOK_S = 0.05


def answer_stack_requests() -> None:
    """Has this process write the stacks of its threads to its standard error on request, and where it crashes."""
    faulthandler.enable()
    # By the interpreter's own handler, because none of ours could: a native call that hangs runs no Python.
    faulthandler.register(STACK_SIGNAL, all_threads=True)


def request_stacks(send: Callable[[int], None], descriptor: int, has_ended: Callable[[], bool]) -> None:
    """Makes a process add its stacks to what it has written, if it still can; returns when they are there or will not come.

    Args:
        send: sends it a signal.
        descriptor: of the file that is its standard error.
        has_ended: whether it is gone.
    """
    if has_ended():
        return
    before = last = os.fstat(descriptor).st_size
    send(STACK_SIGNAL)
    deadline = time.monotonic() + _WRITING_S
    while time.monotonic() < deadline and not has_ended():
        time.sleep(_LOOK_S)
        size = os.fstat(descriptor).st_size
        if size > before and size == last:
            return
        last = size
