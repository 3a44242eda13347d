"""A producer never outlives its trainer, however that one ends and whatever the producer is doing."""

from __future__ import annotations

import fcntl
import os
import select
import signal


def die_with_holder(lifeline: int) -> None:
    """Has the kernel kill this process when the other end of a pipe is closed, by the end of its holder at the latest.

    `PR_SET_PDEATHSIG` would be the usual way, but it follows the *thread* that started the process: a producer restarted
    by a pipeline stage would die with that stage. Reading the end of a socket is not enough either, because a producer
    that hangs in a driver reads nothing.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # The holder may have gone before the signal was asked for.
    if select.select([lifeline], [], [], 0)[0]:
        os.kill(os.getpid(), signal.SIGKILL)
