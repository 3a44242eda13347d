"""Batches prepared in a process of its own that sees only its device."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from myxtts.data.drops import DropReport
from myxtts.data.run_data import save_run_data
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Process
from myxtts.pipeline.batch_size import measure_slot_bytes
from myxtts.pipeline.batch_source import SourceRequest
from myxtts.pipeline.handoff import SLOTS
from myxtts.pipeline.preparation import Prepared
from myxtts.pipeline.preparation_task import NOTES, PRODUCTION_NAME, NoteReader, describe_task
from myxtts.pipeline.producer_client import FilledSlot, ProducerProcess
from myxtts.pipeline.production import write_production
from myxtts.pipeline.stage import TimeLimits
from myxtts.pipeline.staged_source import StagedSource

_log = logging.getLogger(__name__)


def open_isolated_source(request: SourceRequest) -> StagedSource:
    """A source with a producer process and a transfer thread."""
    buckets = request.production.share.shrink_all(request.data.sampler.plan.buckets)
    preparation = request.production.preparation
    time_limits = TimeLimits.from_setting(request.production.config.training.watchdog_seconds)
    request.folder.mkdir(parents=True, exist_ok=True)
    save_run_data(request.data, request.folder)
    write_production(request.production, request.folder / PRODUCTION_NAME)
    with ExitStack() as resources:
        producer = ProducerProcess(
            describe_task(
                request.plan,
                request.folder,
                preparation.rows_at_a_time or max(bucket.rows for bucket in buckets),
            ),
            slot_bytes=measure_slot_bytes(preparation, buckets),
            first_position=request.order.first_number,
            end_position=request.order.end_number,
            memory_limit_bytes=_find_memory_limit(request.plan),
            time_limits=time_limits,
            environment={**os.environ, **dict(request.plan.process(Process.PRODUCER).environ)},
        )
        resources.callback(producer.close)
        _log.info("Prefetching to shared host memory with buffer_size=%d", SLOTS)
        producer.start()
        return StagedSource(
            producer,
            unpack=_Unpacker(request.data.report).unpack,
            stages=[],
            resources=resources,
            device=request.plan.model.device,
            start_delay_s=request.production.config.data.model_start_delay,
            time_limits=time_limits,
            title=request.plan.mode.log_name,
            producer=producer,
        )


class _Unpacker:
    """Takes what the producer has to say out of a slot, and leaves the batch."""

    def __init__(self, report: DropReport):
        self._notes = NoteReader(report)

    def unpack(self, slot: FilledSlot) -> Prepared:
        self._notes.read(slot.arrays.pop(NOTES))
        return slot.arrays


def _find_memory_limit(plan: DevicePlan) -> int | None:
    """What the operating system has to enforce; a card's limit is enforced by TensorFlow."""
    if not plan.rehearsal or plan.data.limit_mib is None:
        return None
    return plan.data.limit_mib * MIB
