"""Stages that hold their device for a set time without using a processor, as a GPU would, in the hand-offs of a real run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from myxtts.pipeline.producer_client import ProducerProcess
from myxtts.pipeline.slots import EndOfStream, Handoff
from myxtts.pipeline.worker import Feed, TimeLimits, WorkerThread, stop_workers, take_watched

SERIES, DUAL, ISOLATED = "single", "dual", "isolated"
BATCH_BYTES = 5 << 20
"""Codes, conditioning mel and text of 32 clips."""
_LAYOUT_BYTES = 4096


def hold(seconds: float) -> None:
    """Takes this long without using a processor."""
    if seconds:
        time.sleep(seconds)


def make_batch(batch_bytes: int) -> dict[str, Any]:
    """Arrays of so many bytes together."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1024, (32, 200), dtype=np.int32)
    return {"codes_BM": codes, "mel": generator.standard_normal((batch_bytes - codes.nbytes) // 4, dtype=np.float32)}


class PacedTask:
    """A producer's task that gives the same batch again and again, each time after `seconds`."""

    def __init__(self, settings: Mapping[str, Any], report: object):
        self._seconds = settings["seconds"]
        self._batch = make_batch(settings["batch_bytes"])

    def warm_up(self) -> None:
        """Nothing has to be traced."""

    def prepare(self, position: int) -> dict[str, Any]:
        hold(self._seconds)
        return self._batch


def make_producer(seconds: float, batches: int, batch_bytes: int) -> ProducerProcess:
    """A producer that needs this long for each batch."""
    settings = {"seconds": seconds, "batch_bytes": batch_bytes}
    task = f"{__name__}:{PacedTask.__name__}"
    return ProducerProcess(task, settings, slot_bytes=batch_bytes + _LAYOUT_BYTES, end_position=batches)


def run_paced(
    mode: str, prepare_s: float, train_s: float, batches: int, batch_bytes: int = BATCH_BYTES, transfer_s: float = 0.0
) -> list[float]:
    """The moments at which batches were done in a mode.

    Args:
        transfer_s: added to what copying takes, where there is something to copy: not on one device.
    """
    if mode == SERIES:
        return list(_run_in_series(prepare_s, train_s, batches))

    def transfer(arrays: Any) -> Any:
        hold(transfer_s)
        return {name: np.array(array) for name, array in arrays.items()}

    last: Handoff[Any] = Handoff("on the model device")
    with ExitStack() as resources:
        if mode == ISOLATED:
            producer = resources.enter_context(closing(make_producer(prepare_s, batches, batch_bytes)))
            stages = [WorkerThread("transfer", lambda slot: transfer(slot.arrays), producer, last)]
        else:
            batch, prepared = make_batch(batch_bytes), Handoff("prepared")

            def prepare(_: int) -> Any:
                hold(prepare_s)
                return batch

            stages = [WorkerThread("prepare", prepare, Feed(iter(range(batches))), prepared)]
            stages.append(WorkerThread("transfer", transfer, prepared, last))
        resources.callback(stop_workers, stages)
        for stage in stages:
            stage.start()
        done: list[float] = []
        while True:
            try:
                take_watched(last, stages, TimeLimits())
            except EndOfStream:
                return done
            hold(train_s)
            last.release()
            done.append(time.perf_counter())


def _run_in_series(prepare_s: float, train_s: float, batches: int) -> Iterator[float]:
    for _ in range(batches):
        hold(prepare_s)
        hold(train_s)
        yield time.perf_counter()
