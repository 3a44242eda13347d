"""Batches prepared on a device of their own, by a thread of this process."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_source import SourceRequest
from myxtts.pipeline.handoff import Handoff
from myxtts.pipeline.preparation import Prepared
from myxtts.pipeline.stage import Feed, Stage, TimeLimits
from myxtts.pipeline.staged_source import StagedSource

_log = logging.getLogger(__name__)


def open_dual_source(request: SourceRequest) -> StagedSource:
    """A source with a data thread on the data device and a transfer thread."""
    data, order = request.production.config.data, request.order
    with ExitStack() as resources:
        # Reading and preparing are done by one stage; which of the two it hangs in is worth knowing.
        factory = BatchFactory(
            request.data, request.production, request.plan.data.device, lambda part: stage.report_part(part)
        )
        resources.callback(factory.close)
        prepared: Handoff[Prepared] = Handoff("prepared", data.prefetch_depth)
        place = request.plan.data.device if data.prefetch_to_gpu else "the host"
        _log.info("Prefetching to %s with buffer_size=%d", place, prepared.slots)
        numbers = Feed(iter(range(order.first_number, order.end_number)))
        stage = Stage("prepare", _DataThread(factory, keeps_on_device=data.prefetch_to_gpu).make, numbers, prepared)
        return StagedSource(
            prepared,
            unpack=dict,
            stages=[stage],
            resources=resources,
            device=request.plan.model.device,
            start_delay_s=data.model_start_delay,
            time_limits=TimeLimits.from_setting(request.production.config.training.watchdog_seconds),
            title=request.plan.mode.log_name,
        )


class _DataThread:
    """What the data thread does: everything on its device happens in this one thread, tracing included.

    Args:
        keeps_on_device: prepared batches wait on the device, not on the host.
    """

    def __init__(self, factory: BatchFactory, *, keeps_on_device: bool):
        self._factory = factory
        self._keeps_on_device = keeps_on_device
        self._is_warm = False

    def make(self, number: int) -> Prepared:
        """The batch with a number, really made: its time and its errors are this stage's, not the next one's."""
        if not self._is_warm:
            self._factory.warm_up()
            self._is_warm = True
        prepared = self._factory.make(number)
        if self._keeps_on_device:
            self._factory.settle(prepared)
            return prepared
        return self._factory.fetch(prepared)
