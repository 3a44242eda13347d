"""Batches from a pipeline that runs beside the training thread, whatever its first stages are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

from myxtts.devices.plan import Mode
from myxtts.pipeline.batch_meters import METERS, BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts
from myxtts.pipeline.handoff import Handoff
from myxtts.pipeline.preparation import Prepared
from myxtts.pipeline.producer_client import ProducerProcess
from myxtts.pipeline.stage import Source, Stage, StageFacts, TimeLimits, Work, stop_stages, take_watched, wait_watched
from myxtts.pipeline.transfer import DeviceBatch, place_batch
from myxtts.pipeline.waiting import HandoffFacts

_log = logging.getLogger(__name__)

Item = TypeVar("Item", covariant=True)


class MeasuredSource(Source[Item], Protocol[Item]):
    """A source that measures who waits at it."""

    def read_facts(self, reset: bool = False) -> HandoffFacts: ...


class StagedSource:
    """Takes prepared batches from `prepared`, has a thread of its own copy them to the model device, and hands them on.

    Args:
        prepared: where prepared batches come from.
        unpack: the arrays of what comes from there.
        stages: the stages before it, not yet started.
        resources: what has to be closed when all stages have ended. They stay the caller's if this fails.
        device: the model device.
        start_delay_s: the longest wait for the other slots to fill once the first batch is ready. That one has no limit but
            `time_limits`.
        time_limits: of the stages; by default those of the settings' default.
        title: of the mode, for the log.
        producer: of the isolated modes.
    """

    def __init__(
        self,
        prepared: MeasuredSource[Any],
        *,
        unpack: Callable[[Any], Prepared],
        stages: Sequence[Stage[Any, Any]],
        resources: ExitStack,
        device: str,
        start_delay_s: float,
        time_limits: TimeLimits | None = None,
        title: str = Mode.DUAL.log_name,
        producer: ProducerProcess | None = None,
    ):
        self._prepared = prepared
        self._unpack = unpack
        self._device = device
        self._start_delay_s = start_delay_s
        self._time_limits = time_limits or TimeLimits()
        self._title = title
        self._producer = producer
        self._has_started = False
        self._is_waiting = False
        self._meters = self._shown_meters = BatchMeters()
        self._shown_transfer = StageFacts("transfer", 0, 0.0)
        self._placed: Handoff[DeviceBatch] = Handoff("on the model device")
        self._transfer = Stage("transfer", self._place, prepared, self._placed)
        self._stages = [*stages, self._transfer]
        try:
            for stage in self._stages:
                stage.start()
        except BaseException:
            stop_stages(self._stages)
            raise
        # Last: until here the caller closes them when something fails.
        self._resources = resources.pop_all()

    @property
    def placed(self) -> Handoff[DeviceBatch]:
        """The slots on the model device."""
        return self._placed

    def take(self) -> DeviceBatch:
        self._is_waiting = True
        try:
            return self._take()
        finally:
            self._is_waiting = False

    def _take(self) -> DeviceBatch:
        if not self._has_started:
            self._fill_slots()
            self._has_started = True
        return take_watched(self._placed, self._stages, self._time_limits)

    def _fill_slots(self) -> None:
        """Waits for the first batch, then for at most the start delay until every slot has one."""
        _log.info("%s: Waiting for the first batch...", self._title)
        began_s = time.perf_counter()
        wait_watched(self._placed, self._stages, self._time_limits)
        _log.info("%s: The first batch was ready after %.1fs", self._title, time.perf_counter() - began_s)
        if self._start_delay_s and not self._placed.wait_until_full(0.0):
            _log.info("%s: Waiting up to %.1fs for data pipeline to warm up...", self._title, self._start_delay_s)
            self._placed.wait_until_full(self._start_delay_s)
        _log.info("Model training starting now")

    def advance(self) -> None:
        """Nothing to do: the next batches are prepared meanwhile."""

    def release(self) -> None:
        self._placed.release()

    def read_work(self) -> Work | None:
        """While the training waits for a producer process, that it does, since the last thing that happened to the producer: one
        that dies may be started again many times. Else nothing: the stages have threads of
        their own, and are looked at while the training waits for them."""
        if self._producer is None or not self._is_waiting:
            return None
        events = self._producer.events
        since_s = events[-1].time_s if events else 0.0
        return Work("waiting for a batch", None, since_s, limit_s=self._producer.longest_silence_s)

    def read_facts(self, reset: bool = False) -> PipelineFacts:
        meters, transfer = self._meters, self._transfer.read_facts()
        facts = PipelineFacts(
            stages=(*(meters - self._shown_meters).list_stages(), _subtract(transfer, self._shown_transfer)),
            handoffs=(self._prepared.read_facts(reset), self._placed.read_facts(reset)),
            meters=meters - self._shown_meters,
            events=() if self._producer is None else tuple(self._producer.events),
            preparation_batch=None if self._producer is None else self._producer.preparation_batch,
        )
        if reset:
            self._shown_meters, self._shown_transfer = meters, transfer
        return facts

    def close(self) -> None:
        # First the stages: what they use is closed only when none of them uses it any more.
        with self._resources:
            stop_stages(self._stages)

    def _place(self, item: Any) -> DeviceBatch:
        began_s = time.perf_counter()
        arrays = self._unpack(item)
        self._meters += BatchMeters.parse(arrays.pop(METERS))
        return place_batch(arrays, self._device, began_s)


def _subtract(now: StageFacts, before: StageFacts) -> StageFacts:
    return StageFacts(now.name, now.items - before.items, now.busy_s - before.busy_s)
