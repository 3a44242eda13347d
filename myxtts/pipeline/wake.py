"""Waiting for a producer's message, interruptible from another thread."""

from __future__ import annotations

import os
import select
import threading

from myxtts.pipeline.handoff import Stopped


class Wake:
    """Lets one thread wait for a descriptor, and another end the waiting for good."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._is_closed = False
        self._closing = threading.Lock()

    def set(self) -> None:
        """Ends all waiting. Does nothing once closed, when the descriptor's number may belong to somebody else."""
        self._is_set = True
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._event, 1)

    def check(self) -> None:
        """Raises `Stopped` once it was set."""
        if self._is_set:
            raise Stopped

    def wait_for(self, descriptor: int, timeout_s: float) -> None:
        """Returns when the descriptor can be read or the time is over. Raises `Stopped` once it was set."""
        poll = select.poll()
        for each in (descriptor, self._event):
            poll.register(each, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
        self.check()

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            os.close(self._event)
