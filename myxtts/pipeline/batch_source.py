"""Where the trainer takes its batches from, whoever prepares them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from myxtts.data.run_data import RunData
from myxtts.devices.plan import DevicePlan
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.order import RunOrder
from myxtts.pipeline.producer_client import ProducerEvent
from myxtts.pipeline.production import Production
from myxtts.pipeline.stage import StageFacts, Work
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.pipeline.waiting import HandoffFacts

PRODUCER_FOLDER = "producer"
"""In the folder of a run."""


@dataclass(frozen=True, eq=False)
class SourceRequest:
    """What a source is opened for.

    Args:
        plan: applied in this process already.
        order: its first and end number say which batches come.
        folder: where the producer process finds what it reads; used by the isolated and split modes.
        waiting: what is done inside it while a source is opened may be broken off by an exception, and nothing else.
    """

    plan: DevicePlan
    data: RunData
    order: RunOrder
    production: Production
    folder: Path
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class PipelineFacts:
    """What the pipeline has measured since it was opened, or since its facts were last reset."""

    stages: tuple[StageFacts, ...]
    """Reading, preparing and, where it is a stage of its own, transferring."""
    handoffs: tuple[HandoffFacts, ...]
    meters: BatchMeters
    events: tuple[ProducerEvent, ...] = ()
    """Of producer processes, all since the beginning."""
    preparation_batch: int | None = None
    """Clips prepared at a time in a producer process, after what running out of memory has made of it."""


class BatchSource(Protocol):
    """The batches of the stream, in order. For one thread."""

    def take(self) -> DeviceBatch:
        """The next batch. Raises `EndOfStream` at the end, or whatever failed, by the name of its stage."""

    def advance(self) -> None:
        """Says that the step with the batch taken last was dispatched: where nothing runs beside the model, the next
        batch is prepared now."""

    def release(self) -> None:
        """Says that the step with the batch taken first is done: nothing uses its buffers any more."""

    def read_work(self) -> Work | None:
        """What is being done for the next batch in the thread that takes; None where others do it. For any thread."""

    def read_facts(self, reset: bool = False) -> PipelineFacts:
        """What was measured; `reset` starts a new window."""

    def close(self) -> None:
        """Ends everything: no thread, process or shared memory is left."""
