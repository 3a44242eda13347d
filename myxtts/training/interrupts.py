"""A polite end: SIGTERM and Ctrl-C let the step under way finish, so that the run can be saved."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises `StopNow` if a signal has come."""
        if self.signal is not None:
            raise _make_stop(self.signal)

    @contextmanager
    def while_idle(self) -> Iterator[None]:
        """A block, such as waiting for a batch, that a signal ends at once: it raises `StopNow`, also if it came before."""
        with self._being(idle=True):
            self.check()
            yield

    @contextmanager
    def while_busy(self) -> Iterator[None]:
        """A block inside an idle one that must not be ended anywhere: a signal is noted, and `signal` and `check` tell of it."""
        with self._being(idle=False):
            yield

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
            raise _make_stop(self.signal)
        _log.warning("%s: the run is saved and ends after the update under way.", name)


def _make_stop(number: signal.Signals) -> StopNow:
    # The words are for the other workers of a cluster, who are told why this one ends.
    return StopNow(f"it was asked to stop ({number.name})")
