"""Who waits for whom at a hand-off: the measuring part, the same for threads and for the producer process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class HandoffFacts:
    """What a hand-off has measured since it was made (or since its facts were last reset)."""

    name: str
    items: int
    """Batches taken."""
    giver_wait_s: float
    """Time the stage before waited for a free slot."""
    taker_wait_s: float
    """Time the stage after waited for a batch."""
    readiness: float
    """Share of the time a batch was ready, 0 to 1. Near 0: the stage before is the bottleneck. Near 1: the one after."""


class Stopwatch:
    """Adds up the time between `begin` and `end`, the part that is still running included."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        self._since = now

    def end(self, now: float) -> None:
        if self._since is not None:
            self._total_s += max(0.0, now - self._since)
        self._since = None

    def add(self, seconds: float) -> None:
        """Time that was measured elsewhere."""
        self._total_s += seconds

    def read(self, now: float) -> float:
        running_s = 0.0 if self._since is None else max(0.0, now - self._since)
        return self._total_s + running_s

    def reset(self, now: float) -> None:
        self._total_s = 0.0
        if self._since is not None:
            self._since = now


class WaitMeter:
    """The waiting of both sides of one hand-off, and how long it had nothing ready. Its owner does the locking."""

    def __init__(self, name: str, now: float):
        self._name = name
        self._ready = 0
        self.giver = Stopwatch()
        self.taker = Stopwatch()
        self._empty = Stopwatch()
        self._empty.begin(now)
        self._items = 0
        self._window_start = now

    def note_ready(self, now: float) -> None:
        """An item became ready; a time before the window counts as its beginning."""
        if self._ready == 0:
            self._empty.end(now)
        self._ready += 1

    def note_taken(self, now: float) -> None:
        """A ready item was taken."""
        assert self._ready > 0, self._name
        self._items += 1
        self._ready -= 1
        if self._ready == 0:
            self._empty.begin(now)

    def read(self, now: float, reset: bool = False) -> HandoffFacts:
        window_s = now - self._window_start
        facts = HandoffFacts(
            name=self._name,
            items=self._items,
            giver_wait_s=self.giver.read(now),
            taker_wait_s=self.taker.read(now),
            readiness=1.0 - self._empty.read(now) / window_s if window_s > 0 else 0.0,
        )
        if reset:
            for watch in (self.giver, self.taker, self._empty):
                watch.reset(now)
            self._items = 0
            self._window_start = now
        return facts


class SharedMeter:
    """A `WaitMeter` that any thread may read while another one measures."""

    def __init__(self, name: str, clock: Callable[[], float]):
        self._clock = clock
        self._lock = threading.Lock()
        self._meter = WaitMeter(name, clock())

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Counts the time within as the taker's waiting."""
        with self._lock:
            self._meter.taker.begin(self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._meter.taker.end(self._clock())

    def note_ready(self, made_at: float, waited_s: float) -> None:
        """An item was made, by a giver that had waited so long for its slot and measures time on the same clock."""
        with self._lock:
            self._meter.giver.add(waited_s)
            # The news may have waited to be read for a while; ready it was when it was made.
            self._meter.note_ready(min(made_at, self._clock()))

    def note_taken(self) -> None:
        with self._lock:
            self._meter.note_taken(self._clock())

    def read(self, reset: bool) -> HandoffFacts:
        with self._lock:
            return self._meter.read(self._clock(), reset)
