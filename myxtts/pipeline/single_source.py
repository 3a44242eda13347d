"""Batches prepared by the thread that trains, on the device that trains."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator

from myxtts.devices.runtime import read_execution
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_meters import METERS, BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts, SourceRequest
from myxtts.pipeline.handoff import SLOTS, EndOfStream
from myxtts.pipeline.stage import Work
from myxtts.pipeline.transfer import DeviceBatch, place_batch

_log = logging.getLogger(__name__)


class SingleSource:
    """Prepares the next batch when it is told that a step was dispatched, so that the device always has work queued.

    At most three batches live: one being trained on, one whose step is queued, one prepared.
    """

    def __init__(self, request: SourceRequest):
        self._device = request.plan.model.device
        self._numbers: Iterator[int] = iter(range(request.order.first_number, request.order.end_number))
        self._ready: deque[DeviceBatch] = deque()
        self._taken = 0
        self._is_synchronous = read_execution().is_synchronous
        self._meters = self._shown = BatchMeters()
        _log.info("Prefetching to %s with buffer_size=1", self._device)
        self._made = 0
        self._work: Work | None = None
        self._factory = BatchFactory(request.data, request.production, request.plan.data.device, self._note_part)
        try:
            with request.waiting():
                self._factory.warm_up()
        except BaseException:
            self._factory.close()
            raise

    def take(self) -> DeviceBatch:
        if not self._ready:
            self._prepare_next()
        if not self._ready:
            raise EndOfStream
        self._taken += 1
        return self._ready.popleft()

    def advance(self) -> None:
        if not self._ready and self._taken < SLOTS:
            self._prepare_next()

    def release(self) -> None:
        assert self._taken > 0, "more batches released than taken"
        self._taken -= 1

    def read_work(self) -> Work | None:
        return self._work

    def read_facts(self, reset: bool = False) -> PipelineFacts:
        meters = self._meters - self._shown
        if reset:
            self._shown = self._meters
        return PipelineFacts(tuple(meters.list_stages()), (), meters)

    def close(self) -> None:
        self._ready.clear()
        self._factory.close()

    def _prepare_next(self) -> None:
        assert self._taken < SLOTS, "every slot is taken: release a batch before taking another"
        number = next(self._numbers, None)
        if number is None:
            return
        try:
            arrays = self._factory.make(number)
            if not self._is_synchronous:
                # Else an error in it would show in the step, under the step's name.
                self._factory.settle(arrays)
            self._meters += BatchMeters.parse(arrays.pop(METERS))
            self._note_part("transfer")
            self._ready.append(place_batch(arrays, self._device))
            self._made += 1
        finally:
            # A request to stop may come in the middle; what follows it is no reading.
            self._work = None

    def _note_part(self, part: str) -> None:
        self._work = Work(part, self._made, time.perf_counter(), is_first=self._made == 0)
