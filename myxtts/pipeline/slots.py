"""The hand-off between two workers: a fixed number of slots, and a measure of who waits for whom.

A slot is taken from the moment a batch begins to be made until the step that uses it is done, so that three slots hold
one batch being trained on, one in flight and one being made, and never a fourth.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

SLOTS = 3


class Stopped(Exception):
    """The pipeline is shutting down; whoever waits at a hand-off leaves quietly."""


class EndOfStream(Exception):
    """The worker before has handed on everything there is."""


@dataclass(frozen=True)
class HandoffFacts:
    """What a hand-off has measured since it was made (or since its facts were last reset)."""

    name: str
    items: int
    """Batches taken."""
    giver_wait_s: float
    """Time the worker before waited for a free slot."""
    taker_wait_s: float
    """Time the worker after waited for a batch."""
    readiness: float
    """Share of the time a batch was ready, 0 to 1. Near 0: the worker before is the bottleneck. Near 1: the one after."""


class Stopwatch:
    """Adds up the time between `begin` and `end`, the part that is still running included."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        self._since = now

    def end(self, now: float) -> None:
        self._total_s, self._since = self.read(now), None

    def add(self, seconds: float) -> None:
        """Time that was measured elsewhere."""
        self._total_s += seconds

    def read(self, now: float) -> float:
        return self._total_s + (0.0 if self._since is None else max(0.0, now - self._since))

    def reset(self, now: float) -> None:
        self._total_s = 0.0
        if self._since is not None:
            self._since = now


class WaitMeter:
    """The waiting of both sides of one hand-off, and how long it had nothing ready. For any thread."""

    def __init__(self, name: str, clock: Callable[[], float]):
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._ready = 0
        self.giver = Stopwatch()
        self.taker = Stopwatch()
        self._empty = Stopwatch()
        self._window_start = clock()
        self._empty.begin(self._window_start)
        self._items = 0

    @contextmanager
    def waiting(self, side: Stopwatch) -> Iterator[None]:
        """Counts the time within as that of a side, `giver` or `taker`."""
        with self._lock:
            side.begin(self._clock())
        try:
            yield
        finally:
            with self._lock:
                side.end(self._clock())

    def note_ready(self, made_at: float | None = None, waited_s: float = 0.0) -> None:
        """An item was made.

        Args:
            made_at: where its giver measures time on the same clock, and the news may have waited to be read for a while.
            waited_s: how long that giver had waited for its slot.
        """
        with self._lock:
            now = self._clock()
            self.giver.add(waited_s)
            if self._ready == 0:
                self._empty.end(now if made_at is None else min(made_at, now))
            self._ready += 1

    def note_taken(self) -> None:
        """A ready item was taken."""
        with self._lock:
            assert self._ready > 0, self._name
            self._items += 1
            self._ready -= 1
            if self._ready == 0:
                self._empty.begin(self._clock())

    def read(self, reset: bool = False) -> HandoffFacts:
        """What was measured so far; `reset` starts a new window, for example after warm-up."""
        with self._lock:
            now = self._clock()
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
                self._items, self._window_start = 0, now
            return facts


class Handoff(Generic[T]):
    """A bounded hand-over between one giving and one taking thread.

    The giver calls `reserve` before it starts to make an item and `commit` when it is made; the taker calls `take`, and
    `release` when it no longer needs the item.
    """

    def __init__(self, name: str, slots: int = SLOTS, clock: Callable[[], float] = time.perf_counter):
        assert slots >= 1, slots
        self.name = name
        self.slots = slots
        self._changed = threading.Condition()
        self._free = slots
        self._ready: deque[T] = deque()
        self._finished = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._meter = WaitMeter(name, clock)

    def reserve(self) -> None:
        """Waits for a free slot. Raises `Stopped` when the pipeline shuts down."""
        with self._changed, self._meter.waiting(self._meter.giver):
            self._wait_until(lambda: self._free > 0)
            self._free -= 1

    def commit(self, item: T) -> None:
        """Hands on an item in a slot reserved before."""
        with self._changed:
            self._ready.append(item)
            self._meter.note_ready()
            self._changed.notify_all()

    def take(self) -> T:
        """The next item, in the order of commits. Raises the giver's failure, `EndOfStream` or `Stopped`."""
        with self._changed:
            self._wait_for_item(None)
            item = self._ready.popleft()
            self._meter.note_taken()
            return item

    def wait_for_item(self, timeout_s: float) -> bool:
        """Whether `take` would not have to wait, after waiting up to `timeout_s` for that. Raises as `take` does."""
        with self._changed:
            return self._wait_for_item(timeout_s)

    def wait_until_full(self, timeout_s: float) -> bool:
        """Whether no more can be made ready, after waiting up to `timeout_s` for that. Raises as `take` does."""
        with self._changed:
            return self._wait_until(lambda: len(self._ready) == self.slots or self._finished, timeout_s)

    def release(self) -> None:
        """Frees the slot of an item taken before: nothing uses its buffers any more."""
        with self._changed:
            assert self._free < self.slots, f"{self.name}: more slots released than taken"
            self._free += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Says that no more items come; those already handed on can still be taken."""
        self._set(finished=True)

    def fail(self, error: BaseException) -> None:
        """Makes both sides raise `error` at once: the run is over, so what is ready is of no use."""
        self._set(failure=error)

    def stop(self) -> None:
        """Sends both sides home."""
        self._set(stopped=True)

    def read_facts(self, reset: bool = False) -> HandoffFacts:
        """See `WaitMeter.read`."""
        return self._meter.read(reset)

    def _wait_for_item(self, timeout_s: float | None) -> bool:
        with self._meter.waiting(self._meter.taker):
            self._wait_until(lambda: bool(self._ready) or self._finished, timeout_s)
        if self._finished and not self._ready:
            raise EndOfStream
        return bool(self._ready)

    def _wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        self._changed.wait_for(lambda: self._failure is not None or self._stopped or is_true(), timeout_s)
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise Stopped
        return is_true()

    def _set(self, *, finished: bool = False, stopped: bool = False, failure: BaseException | None = None) -> None:
        with self._changed:
            self._finished |= finished
            self._stopped |= stopped
            self._failure = self._failure or failure
            self._changed.notify_all()
