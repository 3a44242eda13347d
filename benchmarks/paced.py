"""Stages that hold their device for a set time without using a processor, as a GPU would, in the hand-offs of a real run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from myxtts.pipeline.producer_client import ProducerProcess
from myxtts.pipeline.threads import EndOfStream, Feed, Handoff, WorkerThread, stop_threads

SERIES, DUAL, ISOLATED = "single", "dual", "isolated"
BATCH_BYTES = 5 << 20
"""Codes, conditioning mel and text of 32 clips."""
LAYOUT_BYTES = 4096


def make_batch() -> dict[str, Any]:
    """Arrays of `BATCH_BYTES` together."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1024, (32, 200), dtype=np.int32)
    return {"codes_BM": codes, "mel": generator.standard_normal((BATCH_BYTES - codes.nbytes) // 4, dtype=np.float32)}


class PacedTask:
    """A producer's task that gives the same batch again and again, each time after `seconds`."""

    def __init__(self, settings: Mapping[str, Any], report: object = None):
        self._seconds = settings["seconds"]
        self._batch = make_batch()

    def warm_up(self) -> None:
        """Nothing has to be traced."""

    def prepare(self, position: int) -> dict[str, Any]:
        time.sleep(self._seconds)
        return self._batch


def make_producer(seconds: float, batches: int) -> ProducerProcess:
    """A producer that needs this long for each batch."""
    task = f"{__name__}:{PacedTask.__name__}"
    return ProducerProcess(task, {"seconds": seconds}, slot_bytes=BATCH_BYTES + LAYOUT_BYTES, end_position=batches)


def run_paced(mode: str, prepare_s: float, train_s: float, batches: int, transfer_s: float = 0.0) -> list[float]:
    """The moments at which batches were done in a mode.

    Args:
        transfer_s: added to what copying takes, where there is something to copy: not on one device.
    """
    done: list[float] = []
    if mode == SERIES:
        for _ in range(batches):
            time.sleep(prepare_s)
            time.sleep(train_s)
            done.append(time.perf_counter())
        return done

    def transfer(arrays: Any) -> Any:
        time.sleep(transfer_s)
        return {name: np.array(array) for name, array in arrays.items()}

    last: Handoff[Any] = Handoff("on the model device")
    with ExitStack() as resources:
        if mode == ISOLATED:
            producer = resources.enter_context(closing(make_producer(prepare_s, batches)))
            stages = [WorkerThread("transfer", lambda slot: transfer(slot.arrays), producer, last)]
        else:
            prepare, prepared = PacedTask({"seconds": prepare_s}).prepare, Handoff("prepared")
            stages = [WorkerThread("prepare", prepare, Feed(iter(range(batches))), prepared)]
            stages.append(WorkerThread("transfer", transfer, prepared, last))
        resources.callback(stop_threads, stages)
        for stage in stages:
            stage.start()
        while True:
            try:
                last.take()
            except EndOfStream:
                return done
            time.sleep(train_s)
            last.release()
            done.append(time.perf_counter())
