"""A producer's task that holds its device for a set time without using a processor, as a GPU would."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.pipeline.messages import TaskSpec
from myxtts.pipeline.producer_process import ProducerProcess
from myxtts.pipeline.slot_layout import Arrays
from myxtts.pipeline.task import ReportStage

BATCH_BYTES = 5 << 20
"""Codes, conditioning mel and text of 32 clips."""
_LAYOUT_BYTES = 4096


def hold(seconds: float) -> None:
    """Takes this long without using a processor."""
    if seconds:
        time.sleep(seconds)


def make_batch(batch_bytes: int) -> dict[str, NDArray[Any]]:
    """Arrays of so many bytes together."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1024, (32, 200), dtype=np.int32)
    mel = generator.standard_normal((batch_bytes - codes.nbytes) // 4, dtype=np.float32)
    return {"codes_BM": codes, "mel": mel}


def make_paced_producer(seconds: float, batches: int, batch_bytes: int = BATCH_BYTES) -> ProducerProcess:
    """A producer that needs this long for each batch; not yet started."""
    settings = {"seconds": seconds, "batch_bytes": batch_bytes}
    return ProducerProcess(
        TaskSpec(f"{__name__}:{PacedTask.__name__}", settings),
        slot_bytes=batch_bytes + _LAYOUT_BYTES,
        end_position=batches,
    )


class PacedTask:
    """Gives the same batch again and again, each time after `seconds`."""

    def __init__(self, settings: Mapping[str, Any], report_stage: ReportStage):
        self._seconds = settings["seconds"]
        self._batch = make_batch(settings["batch_bytes"])

    def warm_up(self) -> None:
        """Nothing has to be traced."""

    def prepare(self, position: int) -> Arrays:
        hold(self._seconds)
        return self._batch

    def count_rows(self, position: int) -> int:
        return 1

    def reads_prompts(self) -> bool:
        return False

    def probe(self, position: int, rows: Sequence[int], *, hear_themselves: bool) -> None:
        """Does nothing: no batch of this task does harm."""

    def set_aside(self, position: int, place: int) -> str:
        raise AssertionError("no batch of this task does harm")
