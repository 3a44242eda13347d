"""A run that ends before its time: politely, by SIGTERM or Ctrl-C, after the step under way; or, where it hangs, by the watchdog."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from signal import Signals
from types import FrameType
from typing import Any, Self, TypeVar

from myxtts.config import XTTSConfig
from myxtts.errors import RunStoppedError, WorkStalledError
from myxtts.pipeline.threads import FINAL, Stall, StallWatch, TimeLimits, Work, format_all_stacks
from myxtts.training.run_folder import describe_progress, locate_run, make_resume_command

_log = logging.getLogger(__name__)


class StopNow(BaseException):
    """A signal asked for an end where there is nothing to finish first. No `Exception`: nothing on the way may take it for one."""


class StopRequests:
    """Notes signals instead of dying of them, within its context. A second Ctrl-C interrupts as usual."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The first one that came."""
        self._before: dict[int, Any] = {}
        self._is_idle = False

    def __enter__(self) -> Self:
        self.take()
        return self

    def take(self) -> None:
        """Takes the signals, again where something else has taken them since: TensorFlow's server does that to SIGTERM."""
        for number in self.SIGNALS:
            self._before.setdefault(number, signal.signal(number, self._note))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises `StopNow` if a signal has come."""
        if self.signal is not None:
            # The words are for the other workers of a cluster, who are told why this one ends.
            raise StopNow(f"it was asked to stop ({self.signal.name})")

    @contextmanager
    def while_idle(self) -> Iterator[None]:
        """A block, such as waiting for a batch, that a signal ends at once: it raises `StopNow`, also if it came before."""
        with self._being(idle=True):
            self.check()
            yield

    def while_busy(self) -> AbstractContextManager[None]:
        """A block inside an idle one that must not be ended anywhere: a signal is noted, and `signal` and `check` tell of it."""
        return self._being(idle=False)

    @contextmanager
    def _being(self, *, idle: bool) -> Iterator[None]:
        before, self._is_idle = self._is_idle, idle
        try:
            yield
        finally:
            # A signal is answered once: what is closed or saved after it must not be interrupted by itself.
            self._is_idle = before and self.signal is None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)
        name = signal.Signals(number).name
        if self._is_idle:
            # Once: what is closed on the way out must not be interrupted by another SIGTERM.
            self._is_idle = False
            _log.warning("%s while no update is under way: the run ends now.", name)
            self.check()
        _log.warning("%s: the run is saved and ends after the update under way.", name)


@contextmanager
def stops_politely(config: XTTSConfig, command: Sequence[str], doing: str) -> Iterator[None]:
    """A block that SIGTERM and Ctrl-C end at once, with a `RunStoppedError` that says how to go on."""
    with StopRequests() as stop:
        try:
            with stop.while_idle():
                yield
            # A library that is being loaded may have taken the stop for an error of its own.
            stop.check()
        except StopNow:
            assert stop.signal is not None
            raise explain_stop(config, command, stop.signal, doing=doing) from None


def explain_stop(
    config: XTTSConfig, command: Sequence[str], signal: Signals, *, doing: str = "", is_open: bool = False
) -> RunStoppedError:
    """The error that says how far the run is, which an earlier session of it may have trained.

    Args:
        doing: when the signal came, such as "while it loads".
        is_open: whether the run's folder had been opened: what --reset-training asks to be kept aside is so from then on.
    """
    folder = locate_run(config)
    done = describe_progress(folder) if is_open or config.training.resume != "reset" else None
    when = "the next update" if is_open and done else "anything was trained in this session"
    stopped = f"Stopped by {signal.name}{doing and f' {doing},'} before {when}."
    if done is None:
        return RunStoppedError(f"{stopped} Start it again with the same command.", signal, None)
    resume_command = make_resume_command(command)
    return RunStoppedError(f"{stopped} Nothing is lost of the run in {folder}: {done}.", signal, resume_command)


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
        read_work: what the thread is doing. This one and the following are called in other threads.
        advise: how to go on, for the last word.
        tell: is given every warning, and the last word before the process is ended by force.
    """

    def __init__(
        self,
        read_work: Callable[[], Work | None],
        limits: TimeLimits,
        *,
        advise: Callable[[], str],
        tell: Callable[[str, bool], None],
        grace_s: float = GRACE_S,
        end_process: Callable[[int], None] = os._exit,
    ):
        self._read_work = read_work
        self._limits = limits
        self._advise = advise
        self._tell = tell
        self._grace_s = grace_s
        self._end_process = end_process
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
        watch = StallWatch(self._limits)
        while not self._is_over.wait(self._limits.look_s):
            stall = watch.look(self._read_work())
            if stall is not None and stall.is_final:
                self._end_run(stall)
                return
            if stall is not None:
                text = f"{stall} The run ends if that lasts {FINAL * stall.limit_s:g} s."
                _log.warning("%s Where all threads are:\n%s", text, format_all_stacks(self._watched))
                self._tell(text, False)

    def _end_run(self, stall: Stall) -> None:
        stacks = format_all_stacks(self._watched)
        with self._raising:
            if self._is_over.is_set():
                return
            self._last_word = f"{stall} The run ends. {self._advise()}\nWhere all threads were:\n{stacks}"
            _raise_in_thread(self._watched, StalledNow)
        if self._is_over.wait(self._grace_s):
            return

        def say_last_words() -> None:
            _log.critical("%s\nIt cannot be reached where it is, so the process ends now.", self._last_word)
            self._tell(f"{stall} {self._advise()}", True)

        # In a thread of their own: the disk or the lock of a log may be what hangs.
        last_words = threading.Thread(target=say_last_words, daemon=True)
        last_words.start()
        last_words.join(LAST_WORDS_S)
        self._end_process(EXIT_CODE)


def _raise_in_thread(ident: int, kind: type[BaseException] | None) -> None:
    """Has a thread raise an exception as soon as it runs Python again; None takes that back."""
    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), exception)
