"""Sees to it that a run does not hang in silence: looks at the training thread from one of its own.

The only owner of a thread in this room. The run pays nothing for it: what the thread is doing is written down anyway.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from myxtts.errors import WorkStalledError
from myxtts.pipeline.worker import FINAL, Stall, StallWatch, TimeLimits, Work, format_all_stacks

_log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 60.0
"""For a thread that hangs in Python, or comes back after all, to close what is open."""
EXIT_CODE = 1
LAST_WORDS_S = 5.0
"""For the log and the metrics of a process that is ended by force."""


class StalledNow(BaseException):
    """Raised in a thread that hangs, wherever it is. No `Exception`: nothing on the way may take it for one."""


class Watchdog:
    """Watches the thread that calls `run`, while it does what it was given.

    A thing that takes longer than its limit is named in a warning, with the stacks of all threads. After twice the limit the run
    ends with `WorkStalledError`, raised in the thread itself. A thread that cannot be reached, because it waits inside a driver or
    a file system, takes the process with it: the operating system then closes what is open, and the producer ends with its trainer.

    Args:
        read_work: what the thread is doing; called from another one.
        limits: for one thing.
        advise: how to go on, for the last word; called in the watching thread.
        on_warning: is given every warning, in the watching thread.
        on_force: is given the last word before the process is ended.
        end_process: ends it, with an exit code.
        clock: for the time between two looks.
    """

    def __init__(
        self,
        read_work: Callable[[], Work | None],
        limits: TimeLimits,
        *,
        advise: Callable[[], str],
        on_warning: Callable[[str], None],
        on_force: Callable[[str], None],
        grace_s: float = GRACE_S,
        end_process: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._read_work = read_work
        self._limits = limits
        self._advise = advise
        self._on_warning = on_warning
        self._on_force = on_force
        self._grace_s = grace_s
        self._end_process = end_process
        self._clock = clock
        self._watched = 0
        self._last_word: str | None = None
        self._is_over = threading.Event()
        self._raising = threading.Lock()
        self._thread = threading.Thread(target=self._look, name="myxtts-watchdog", daemon=True)

    def run(self, work: Callable[[], T]) -> T:
        """What the work returns. Raises `WorkStalledError` where it hung.

        A function and no context: what is raised in a thread from outside may arrive anywhere, also in between the end of a block and
        the first line of what would leave its context.
        """
        self._watched = threading.get_ident()
        try:
            try:
                self._thread.start()
                return work()
            finally:
                self._leave()
        except StalledNow:
            # It is raised once, so from here on nothing can interrupt this.
            self._leave()
            raise WorkStalledError(self._last_word) from None

    def _leave(self) -> None:
        """Nothing is raised in the thread from here on, and nobody watches it."""
        with self._raising:
            self._is_over.set()
            # It may have come back by itself in the same moment: what was to be raised in it must not come later.
            _raise_in_thread(self._watched, None)
        self._thread.join()

    def _look(self) -> None:
        watch = StallWatch(self._limits, self._clock)
        while not self._is_over.wait(self._limits.look_s):
            stall = watch.look(self._read_work())
            if stall is not None and stall.is_final:
                self._end_run(stall)
                return
            if stall is not None:
                self._warn(stall)

    def _warn(self, stall: Stall) -> None:
        text = f"{stall} The run ends if that lasts {FINAL * stall.limit_s:g} s."
        _log.warning("%s Where all threads are:\n%s", text, format_all_stacks(self._watched))
        self._on_warning(text)

    def _end_run(self, stall: Stall) -> None:
        stacks = format_all_stacks(self._watched)
        with self._raising:
            if self._is_over.is_set():
                return
            self._last_word = f"{stall} The run ends. {self._advise()}\nWhere all threads were:\n{stacks}"
            _raise_in_thread(self._watched, StalledNow)
        if self._is_over.wait(self._grace_s):
            return
        # In a thread of their own: the disk or the lock of a log may be what hangs.
        last_words = threading.Thread(target=self._say_last_words, args=(stall,), daemon=True)
        last_words.start()
        last_words.join(LAST_WORDS_S)
        self._end_process(EXIT_CODE)

    def _say_last_words(self, stall: Stall) -> None:
        _log.critical("%s\nIt cannot be reached where it is, so the process ends now.", self._last_word)
        self._on_force(f"{stall} {self._advise()}")


def _raise_in_thread(ident: int, kind: type[BaseException] | None) -> None:
    """Has a thread raise an exception as soon as it runs Python again; None takes that back."""
    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), exception)
