"""A polite end: SIGTERM and Ctrl-C let the step under way finish, so that the run can be saved."""

from __future__ import annotations

import logging
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_log = logging.getLogger(__name__)


class StopRequests:
    """Notes signals instead of dying of them, within its context. A second Ctrl-C interrupts as usual."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The first one that came."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)
        _log.warning("%s: the run is saved and ends after the update under way.", signal.Signals(number).name)
