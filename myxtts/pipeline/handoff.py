"""The hand-off between two stages: a fixed number of slots, and a measure of who waits for whom.

A slot is taken from the moment a batch begins to be made until the step that uses it is done, so that three slots hold
one batch being trained on, one in flight and one being made, and never a fourth.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from myxtts.pipeline.waiting import HandoffFacts, WaitMeter

T = TypeVar("T")

SLOTS = 3


class Stopped(Exception):
    """The pipeline is shutting down; whoever waits at a hand-off leaves quietly."""


class EndOfStream(Exception):
    """The stage before has handed on everything there is."""


class Handoff(Generic[T]):
    """A bounded hand-over between one giving and one taking thread.

    The giver calls `reserve` before it starts to make an item and `commit` when it is made; the taker calls `take`, and
    `release` when it no longer needs the item.
    """

    def __init__(self, name: str, slots: int = SLOTS, clock: Callable[[], float] = time.perf_counter):
        assert slots >= 1, slots
        self.name = name
        self.slots = slots
        self._clock = clock
        self._changed = threading.Condition()
        self._free = slots
        self._ready: deque[T] = deque()
        self._finished = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._meter = WaitMeter(name, clock())

    def reserve(self) -> None:
        """Waits for a free slot. Raises `Stopped` when the pipeline shuts down."""
        with self._changed:
            self._meter.giver.begin(self._clock())
            try:
                self._wait_until(lambda: self._free > 0)
            finally:
                self._meter.giver.end(self._clock())
            self._free -= 1

    def commit(self, item: T) -> None:
        """Hands on an item in a slot reserved before."""
        with self._changed:
            self._ready.append(item)
            self._meter.note_ready(self._clock())
            self._changed.notify_all()

    def take(self) -> T:
        """The next item, in the order of commits. Raises the giver's failure, `EndOfStream` or `Stopped`."""
        with self._changed:
            self._wait_for_item(None)
            item = self._ready.popleft()
            self._meter.note_taken(self._clock())
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
        """What was measured so far; `reset` starts a new window, for example after warm-up."""
        with self._changed:
            return self._meter.read(self._clock(), reset)

    def _wait_for_item(self, timeout_s: float | None) -> bool:
        self._meter.taker.begin(self._clock())
        try:
            self._wait_until(lambda: bool(self._ready) or self._finished, timeout_s)
        finally:
            self._meter.taker.end(self._clock())
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
