"""Stages that only take time, in this process or in a producer's. No TensorFlow: a producer that imports it takes long to start.

The time is made up: each thread has a clock that `Pace.hold` puts on, and that goes on to the giver's (or taker's) time where a
thread has to wait for another. So every figure is the same on a busy machine, and nobody sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from myxtts.data.order import Kind
from myxtts.pipeline.batch import Batch, BatchFacts, BatchInfo, BatchMemory, BatchSpans, Span
from myxtts.pipeline.producer_client import FilledSlot, ProducerProcess
from myxtts.pipeline.threads import Handoff

RARELY = 6
SLOT_BYTES = 1 << 16
T = TypeVar("T")


class Clock(threading.local):
    """A clock for each thread."""

    now_s = 0.0

    def read(self) -> float:
        return self.now_s

    def hold(self, seconds: float) -> None:
        self.now_s += seconds

    def catch_up(self, time_s: float) -> None:
        """Waits for what another thread did at this time."""
        self.now_s = max(self.now_s, time_s)


CLOCK = Clock()


class PacedHandoff(Handoff[T]):
    """A hand-off at which both sides wait by their clocks."""

    def __init__(self, name: str):
        super().__init__(name)
        self._committed_s: list[float] = []
        self._released_s: list[float] = []
        self._reserved = self._taken = 0

    def reserve(self) -> None:
        super().reserve()
        if self._reserved >= self.slots:
            CLOCK.catch_up(self._released_s[self._reserved - self.slots])
        self._reserved += 1

    def commit(self, item: T) -> None:
        self._committed_s.append(CLOCK.read())
        super().commit(item)

    def take(self) -> T:
        item = super().take()
        CLOCK.catch_up(self._committed_s[self._taken])
        self._taken += 1
        return item

    def release(self) -> None:
        self._released_s.append(CLOCK.read())
        super().release()


class PacedProducer(ProducerProcess):
    """A producer process that is waited for by its clock."""

    def take(self) -> FilledSlot:
        slot = super().take()
        CLOCK.catch_up(Batch.unpack(slot.arrays).info.spans.prepare.ended_s)
        return slot


@dataclass(frozen=True)
class Pace:
    """Seconds of each stage; `rare` is added to every sixth item of the stage that has it."""

    read: float = 0.001
    prepare: float = 0.004
    transfer: float = 0.001
    train: float = 0.008
    rare: tuple[str, float] = ("", 0.0)

    def hold(self, stage: str, number: int) -> None:
        CLOCK.hold(getattr(self, stage))
        if self.rare[0] == stage and number % RARELY == 0:
            CLOCK.hold(self.rare[1])


class PacedFactory:
    """A batch factory that only takes time."""

    def __init__(self, pace: Pace):
        self._pace = pace

    def warm_up(self) -> None:
        """Nothing is traced."""

    def make(self, number: int) -> Batch:
        began = CLOCK.read()
        self._pace.hold("read", number)
        read = CLOCK.read()
        self._pace.hold("prepare", number)
        ended = CLOCK.read()
        info = BatchInfo(
            facts=BatchFacts(number, Kind.TRAIN, number, 0, 1, 0, number % 2, 2, 100, 120),
            clip_numbers=(0, 0),
            replaced=(),
            totals=(),
            spans=BatchSpans(Span(began, read), Span(read, ended)),
            memory=BatchMemory(1, None, None),
        )
        return Batch({"weights_B": np.ones(2, np.float32)}, info)

    def close(self) -> None:
        """Nothing is open."""


def make_producer(pace: Pace) -> PacedProducer:
    """A producer process with this pace."""
    return PacedProducer(f"{__name__}:{PacedProduction.__name__}", asdict(pace), slot_bytes=SLOT_BYTES)


class PacedProduction:
    """A producer's task that only takes time."""

    def __init__(self, settings: Mapping[str, Any], report: Any):
        self._factory = PacedFactory(Pace(**{**settings, "rare": tuple(settings["rare"])}))

    def warm_up(self) -> None:
        """Nothing is traced."""

    def prepare(self, position: int) -> dict[str, Any]:
        return self._factory.make(position).pack()

    def replace_batch(self, position: int) -> list[str]:
        raise AssertionError("no batch does harm")
