"""Processes that keep processors busy beside a measurement."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

from myxtts.data.workers import Task, Work, WorkerProcess

_LOOK_EVERY = 200_000


@contextmanager
def keep_busy(processes: int) -> Iterator[None]:
    """So many processes compute without a pause, from before the block begins until it ends."""
    ended, end = os.pipe()
    workers: list[WorkerProcess] = []
    try:
        for _ in range(processes):
            workers.append(WorkerProcess(Task(f"{__name__}:make_spinner", {"ended": ended}), pass_fds=[ended]))
            workers[-1].give([None])
        for worker in workers:
            while not worker.is_ready and not worker.is_closed:
                worker.receive()
        yield
    finally:
        # Whoever looks at the other end of the pipe sees that it is over.
        os.close(end)
        for worker in workers:
            worker.stop()
        os.close(ended)


def make_spinner(ended: int) -> Work:
    """The work of a busy process: computes until the pipe's other end is closed."""

    def spin(_: None) -> None:
        while not select.select([ended], [], [], 0)[0]:
            for _step in range(_LOOK_EVERY):
                pass

    return spin
