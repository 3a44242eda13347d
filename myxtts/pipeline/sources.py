"""The same batches by three ways: who prepares them is the plan's choice."""

from __future__ import annotations

import logging

from myxtts.devices.plan import Mode
from myxtts.pipeline.batch_source import BatchSource, PipelineFacts, SourceRequest
from myxtts.pipeline.dual_source import open_dual_source
from myxtts.pipeline.isolated_source import open_isolated_source
from myxtts.pipeline.single_source import SingleSource
from myxtts.pipeline.transfer import DeviceBatch

_log = logging.getLogger(__name__)

__all__ = ["BatchSource", "DeviceBatch", "PipelineFacts", "SourceRequest", "open_source"]


def open_source(request: SourceRequest) -> BatchSource:
    """The source for a plan, started. The log says what is in force."""
    _log.info("Intelligent GPU Pipeline: %s", request.plan.mode.log_name)
    _log.info("Smart Prefetching: Enabled")
    if request.plan.mode is Mode.SINGLE:
        return SingleSource(request)
    if request.plan.has_producer:
        return open_isolated_source(request)
    # The dual mode, or isolation inside one process.
    return open_dual_source(request)
