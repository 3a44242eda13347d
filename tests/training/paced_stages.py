"""Stages that only take time, in this process or in a producer's. No TensorFlow: a producer that imports it takes long to start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from myxtts.pipeline.batch_facts import CLIPS, FACTS, REPLACED, BatchFacts, dump_failures
from myxtts.pipeline.batch_memory import MEMORY, BatchMemory, dump_memory
from myxtts.pipeline.batch_meters import METERS, BatchMeters
from myxtts.pipeline.batch_spans import SPANS, Span, dump_spans
from myxtts.pipeline.order import Kind
from myxtts.pipeline.producer import TaskSpec
from myxtts.pipeline.producer_client import ProducerProcess

hold = time.sleep
"""Takes so many seconds without using a processor."""
RARELY = 6
SLOT_BYTES = 1 << 16


@dataclass(frozen=True)
class Pace:
    """Seconds of each stage; `rare` is added to every sixth item of the stage that has it."""

    read: float = 0.001
    prepare: float = 0.004
    transfer: float = 0.001
    train: float = 0.008
    rare: tuple[str, float] = ("", 0.0)

    def hold(self, stage: str, number: int) -> None:
        hold(getattr(self, stage))
        if self.rare[0] == stage and number % RARELY == 0:
            hold(self.rare[1])


class PacedFactory:
    """A batch factory that only takes time."""

    def __init__(self, pace: Pace):
        self._pace = pace

    def warm_up(self) -> None:
        """Nothing is traced."""

    def make(self, number: int) -> dict[str, Any]:
        began = time.perf_counter()
        self._pace.hold("read", number)
        read = time.perf_counter()
        self._pace.hold("prepare", number)
        ended = time.perf_counter()
        return {
            "weights_B": np.ones(2, np.float32),
            FACTS: BatchFacts(number, Kind.TRAIN, number, 0, 1, 0, number % 2, 2, 100, 120).dump(),
            REPLACED: dump_failures([]),
            CLIPS: np.zeros(2, np.int32),
            METERS: BatchMeters(1, read - began, ended - read).dump(),
            SPANS: dump_spans(Span(began, read), Span(read, ended)),
            MEMORY: dump_memory(BatchMemory(1, None, None)),
        }

    def close(self) -> None:
        """Nothing is open."""


def make_producer(pace: Pace) -> ProducerProcess:
    """A producer process with this pace; not yet started."""
    return ProducerProcess(TaskSpec(f"{__name__}:{PacedProduction.__name__}", asdict(pace)), slot_bytes=SLOT_BYTES)


class PacedProduction:
    """A producer's task that only takes time."""

    def __init__(self, settings: Mapping[str, Any], report_stage: Any):
        self._factory = PacedFactory(Pace(**{**settings, "rare": tuple(settings["rare"])}))

    def warm_up(self) -> None:
        """Nothing is traced."""

    def prepare(self, position: int) -> dict[str, Any]:
        return self._factory.make(position)

    def replace_batch(self, position: int) -> list[str]:
        raise AssertionError("no batch does harm")
