"""Where the time of a run goes: every moment is booked under exactly one cause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What time was spent on. Only `STEP` is goodput; all others are badput."""

    STEP = "step"
    START_UP = "start-up"
    TRACE = "trace/compile"
    DATA_STALL = "data stall"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    VALIDATION = "validation"
    RECOVERY = "recovery"
    OTHER_WORKERS = "other workers"
    """Waiting for the slowest worker of a cluster. The exchange of gradients itself is part of the step."""
    OTHER = "other"
    """The loop itself: reading metrics, logging."""


Spent = Mapping[Cause, float]
"""Seconds by cause; causes without any time may be missing."""


@dataclass(eq=False)
class BookedSpan:
    """A stretch of time that is being booked."""

    cause: Cause
    """May be changed until the span ends: that a step traced is known only when it is done."""
    name: str | None = None
    """What exactly is done, where the cause does not say it; for who asks whether it hangs."""
    item: int | None = None
    """How far it is, where that is known."""
    own_s: float = 0.0
    """Without the time of spans within it."""
    is_first: bool = False
    """Whether something is done for the first time, which on a GPU may take minutes."""


class TimeLedger:
    """Books time from its making on: first as start-up, after `begin_loop` as other, inside `spend` under its cause.

    A span inside a span interrupts it, so nothing is counted twice and the parts always add up to the time elapsed.
    For one thread: that of the training loop.

    Example:
        with ledger.spend(Cause.STEP) as span:
            step(batch)
            if traced():
                span.cause = Cause.TRACE
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._since = clock()
        self._spent_s = dict.fromkeys(Cause, 0.0)
        self._open = [BookedSpan(Cause.START_UP)]
        self._window_start: Spent = {}

    def begin_loop(self) -> None:
        """Start-up is over: what no span covers is other time from now on."""
        self._credit()
        base = self._open[0]
        self._spent_s[base.cause] += base.own_s
        self._open[0] = BookedSpan(Cause.OTHER)

    @contextmanager
    def spend(self, cause: Cause, name: str | None = None) -> Iterator[BookedSpan]:
        """Books the time within under a cause, whatever way it ends."""
        self._credit()
        span = BookedSpan(cause, name)
        self._open.append(span)
        try:
            yield span
        finally:
            self._credit()
            ended = self._open.pop()
            assert ended is span, "spans end in the reverse order of their beginning"
            self._spent_s[span.cause] += span.own_s

    def read(self) -> dict[Cause, float]:
        """Seconds by cause since the ledger was made, spans that are still open included."""
        self._credit()
        spent = dict(self._spent_s)
        for span in self._open:
            spent[span.cause] += span.own_s
        return spent

    def peek(self) -> tuple[BookedSpan, float]:
        """What is being done and since when by the clock. For any thread: it reads what is written anyway, and waits for nothing."""
        # The span first: when a span begins or ends, the time is written before it changes, so it is never too old.
        return self._open[-1], self._since

    def take_window(self) -> dict[Cause, float]:
        """Seconds by cause since this was last called; causes without any are left out."""
        now = self.read()
        window = {cause: now[cause] - self._window_start.get(cause, 0.0) for cause in Cause}
        self._window_start = now
        # A span that changed its cause while open takes its time along, out of a window that may already be closed.
        return {cause: seconds for cause, seconds in window.items() if seconds}

    def _credit(self) -> None:
        now = self._clock()
        self._open[-1].own_s += now - self._since
        self._since = now


def sum_spent(parts: Iterator[Spent] | list[Spent]) -> dict[Cause, float]:
    """The sum of some windows, with every cause in it."""
    total = dict.fromkeys(Cause, 0.0)
    for part in parts:
        for cause, seconds in part.items():
            total[cause] += seconds
    return total


def measure_elapsed(spent: Spent) -> float:
    """All the time that was booked, in seconds."""
    return math.fsum(spent.values())


def measure_goodput(spent: Spent) -> float | None:
    """Share of the time elapsed that went into steps; None while no time has passed."""
    elapsed_s = measure_elapsed(spent)
    return spent.get(Cause.STEP, 0.0) / elapsed_s if elapsed_s > 0 else None


def measure_training(spent: Spent) -> float:
    """Seconds in which the run made its steps or could have: without start-up, tracing, validating, saving, recovering."""
    return math.fsum(spent.get(cause, 0.0) for cause in (Cause.STEP, Cause.DATA_STALL, Cause.TRANSFER, Cause.OTHER))
