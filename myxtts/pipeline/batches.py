"""The batches of a run, in order, on the device that trains: the same ones by four ways. Who prepares them is the plan's choice.

One device does both in the thread that trains; a data thread prepares on a device of its own; a producer process does that sees
only its device; or preparers on whatever machines. In all but the first a transfer thread brings them to the model device."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from myxtts.data.drops import Drop, DropReport
from myxtts.data.run_data import RunData, save_run_data
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import Mode, Process
from myxtts.devices.runtime import read_execution
from myxtts.errors import DropReason
from myxtts.pipeline import factory
from myxtts.pipeline.batch import Batch, BatchMeters, Span, measure_slot_bytes
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.producer_client import FilledSlot, PreparedBatches, ProducerEvent, ProducerProcess
from myxtts.pipeline.recipe import RECIPE_NAME, BatchRecipe
from myxtts.pipeline.threads import (
    SLOTS,
    EndOfStream,
    Feed,
    Handoff,
    HandoffFacts,
    TimeLimits,
    Work,
    WorkerThread,
    WorkFacts,
    stop_threads,
    wait_watched,
)
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)


def place_batch(batch: Batch, device: str, began_s: float | None = None) -> Batch:
    """The batch with its tensors on a device. Nothing of it shows the memory of the arrays any more.

    Args:
        began_s: when the transfer began, by `time.perf_counter`; now unless given.
    """
    began_s = time.perf_counter() if began_s is None else began_s
    with get_device_context(device):
        # Out of a slot only by `tf.constant`, which copies. `tf.convert_to_tensor`, `tf.expand_dims`, `tf.squeeze`, dlpack,
        # `numpy_function` and `from_generator` may go on showing the slot's memory, which the next batch overwrites.
        tensors = {
            name: tf.constant(array) if isinstance(array, np.ndarray) else tf.identity(array)
            for name, array in batch.tensors.items()
        }
    spans = batch.info.spans._replace(transfer=Span(began_s, time.perf_counter()))
    return Batch(tensors, replace(batch.info, spans=spans))


PRODUCER_FOLDER = "producer"
"""In the folder of a run."""
PRODUCER_TASK = f"{factory.__name__}:{factory.make_task.__name__}"


@dataclass(frozen=True)
class PipelineFacts:
    """What the pipeline has measured since it was opened."""

    elapsed_s: float
    work: tuple[WorkFacts, ...]
    """Reading, preparing and, where a thread of its own does it, transferring."""
    handoffs: tuple[HandoffFacts, ...]
    meters: BatchMeters
    events: tuple[ProducerEvent, ...] = ()
    """Of producer processes, or of preparers."""
    preparers: tuple[HandoffFacts, ...] = ()
    """Of each of several that prepare beside each other: how long it waited for something to do, and the training for it."""
    trainers: tuple[HandoffFacts, ...] = ()
    """As in `monitoring.clock.Flow`."""


class Batches(Protocol):
    """The batches of the stream, in order. For one thread."""

    def take(self) -> Batch:
        """The next batch. Raises `EndOfStream` at the end, or whatever failed, by the name of its work."""

    def advance(self) -> None:
        """Says that the step with the batch taken last was dispatched: where nothing runs beside the model, the next
        batch is prepared now."""

    def release(self) -> None:
        """Says that the step with the batch taken first is done: nothing uses its buffers any more."""

    def read_work(self) -> Work | None:
        """What is being done for the next batch in the thread that takes; None where others do it. For any thread."""

    def read_facts(self) -> PipelineFacts: ...

    def close(self) -> None:
        """Ends everything: no thread, process or shared memory is left."""


OpenRemote = Callable[[BatchRecipe, RunData], PreparedBatches]


def open_batches(
    recipe: BatchRecipe,
    data: RunData,
    *,
    folder: Path,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    open_remote: OpenRemote | None = None,
) -> Batches:
    """The batches of a recipe, being prepared. The log says what is in force.

    Args:
        folder: where a producer process finds what it reads; used by the modes that have one.
        waiting: what is done inside it while batches are opened may be broken off by an exception, and nothing else.
        open_remote: opens what preparers on other machines make; for the mode that has them.
    """
    _log.info("Intelligent GPU Pipeline: %s", recipe.plan.mode.log_name)
    _log.info("Smart Prefetching: Enabled")
    if recipe.plan.mode is Mode.SINGLE:
        return OwnBatches(recipe, data, waiting)
    if recipe.plan.mode is Mode.REMOTE:
        assert open_remote is not None, "this mode is for a run that has joined a cluster"
        return _pipe_prepared(recipe, data, open_remote(recipe, data))
    if recipe.plan.has_producer:
        return _open_isolated(recipe, data, folder)
    # The dual mode, or isolation inside one process.
    return _open_dual(recipe, data)


class OwnBatches:
    """Prepared by the thread that trains, on the device that trains.

    The next one is prepared when it is told that a step was dispatched, so that the device always has work queued. At most three
    batches live: one being trained on, one whose step is queued, one prepared.
    """

    def __init__(self, recipe: BatchRecipe, data: RunData, waiting: Callable[[], AbstractContextManager[None]]):
        order = recipe.make_order(data)
        self._device = recipe.plan.model.device
        self._numbers: Iterator[int] = iter(range(order.first_number, order.end_number))
        self._ready: deque[Batch] = deque()
        self._taken = self._made = 0
        self._is_synchronous = read_execution().is_synchronous
        self._meters = BatchMeters()
        self._opened_at = time.perf_counter()
        self._work: Work | None = None
        _log.info("Prefetching to %s with buffer_size=1", self._device)
        self._factory = BatchFactory(data, recipe, self._note_part)
        try:
            with waiting():
                self._factory.warm_up()
        except BaseException:
            self._factory.close()
            raise

    def take(self) -> Batch:
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

    def read_facts(self) -> PipelineFacts:
        elapsed_s = time.perf_counter() - self._opened_at
        return PipelineFacts(elapsed_s, tuple(self._meters.list_work()), (), self._meters)

    def close(self) -> None:
        self._ready.clear()
        self._factory.close()

    def _prepare_next(self) -> None:
        assert self._taken < SLOTS, "every slot is taken: release a batch before taking another"
        number = next(self._numbers, None)
        if number is None:
            return
        try:
            batch = self._factory.make(number)
            if not self._is_synchronous:
                # Else an error in it would show in the step, under the step's name.
                batch = self._factory.finish(batch, on_host=False)
            self._meters += batch.info.meters
            self._note_part("transfer")
            self._ready.append(place_batch(batch, self._device))
            self._made += 1
        finally:
            # A request to stop may come in the middle; what follows it is no reading.
            self._work = None

    def _note_part(self, part: str) -> None:
        self._work = Work(part, self._made, time.perf_counter(), is_first=self._made == 0)


def _open_dual(recipe: BatchRecipe, data: RunData) -> PipedBatches:
    """Batches of a data thread on the data device: everything there happens in this one thread, tracing included."""
    config, device, order = recipe.config.data, recipe.plan.data.device, recipe.make_order(data)
    prepared: Handoff[Batch] = Handoff("prepared", config.prefetch_depth)
    where = device if config.prefetch_to_gpu else "the host"
    _log.info("Prefetching to %s with buffer_size=%d", where, prepared.slots)
    # Reading and preparing are done by one thread; which of the two it hangs in is worth knowing.
    batch_factory = BatchFactory(data, recipe, lambda part: thread.report_part(part))
    is_cold = True

    def make(number: int) -> Batch:
        nonlocal is_cold
        if is_cold:
            batch_factory.warm_up()
            is_cold = False
        # Its time and its errors are this thread's, not the next one's: it waits until a batch is really made.
        return batch_factory.finish(batch_factory.make(number), on_host=not config.prefetch_to_gpu)

    thread = WorkerThread("prepare", make, Feed(iter(range(order.first_number, order.end_number))), prepared)
    return PipedBatches(recipe, prepared, threads=[thread], close_source=batch_factory.close)


def _open_isolated(recipe: BatchRecipe, data: RunData, folder: Path) -> PipedBatches:
    order, buckets, limit_mib = recipe.make_order(data), recipe.list_buckets(data), recipe.plan.data.limit_mib
    folder.mkdir(parents=True, exist_ok=True)
    save_run_data(data, folder)
    recipe.write(folder / RECIPE_NAME)
    _log.info("Prefetching to shared host memory with buffer_size=%d", SLOTS)
    producer = ProducerProcess(
        PRODUCER_TASK,
        {
            "folder": str(folder),
            "execution": asdict(read_execution()),
            "preparation_batch": recipe.preparation.rows_at_a_time or max(bucket.rows for bucket in buckets),
        },
        slot_bytes=measure_slot_bytes(recipe.preparation, buckets),
        first_position=order.first_number,
        end_position=order.end_number,
        # A card's limit is enforced by TensorFlow.
        memory_limit_bytes=limit_mib * MIB if recipe.plan.rehearsal and limit_mib is not None else None,
        time_limits=TimeLimits.from_setting(recipe.config.training.watchdog_seconds),
        environment={**os.environ, **dict(recipe.plan.process(Process.PRODUCER).environ)},
    )
    return _pipe_prepared(recipe, data, producer)


def _pipe_prepared(recipe: BatchRecipe, data: RunData, prepared: PreparedBatches) -> PipedBatches:
    notes = NoteReader(data.report)

    def unpack(slot: FilledSlot) -> Batch:
        batch = Batch.unpack(slot.arrays)
        notes.read(batch.info.notes)
        return batch

    return PipedBatches(recipe, prepared, unpack=unpack, close_source=prepared.close)


class NoteReader:
    """Puts what a producer noted (`factory.NoteTaker`) where it would be had it happened here.

    A producer that is started anew says most of it again; only what is new counts.

    Args:
        report: of clips that fail.
    """

    def __init__(self, report: DropReport):
        self._report = report
        self._known: set[tuple[Any, ...]] = set()

    def read(self, notes: Sequence[Sequence[Any]]) -> None:
        for note in map(tuple, notes):
            if note in self._known:
                continue
            self._known.add(note)
            match note:
                case ("log", int(level), str(name), str(text)):
                    logging.getLogger(name).log(level, "%s", text)
                case ("drop", str(reason), *rest):
                    self._report.replaced.append(Drop(DropReason(reason), *rest))


class PipedBatches:
    """Prepared beside the thread that trains; a thread of its own copies them to the model device.

    Args:
        recipe: of it the model device, the longest wait for the other slots to fill once the first batch is ready, and the limit
            of what a thread may take. The first batch has no limit but that.
        prepared: where prepared batches come from: a thread of this process, or others.
        close_source: called when all threads have ended.
        unpack: the batch in what comes from there.
        threads: those before it, not yet started.
    """

    def __init__(
        self,
        recipe: BatchRecipe,
        prepared: Handoff[Any] | PreparedBatches,
        *,
        close_source: Callable[[], None],
        unpack: Callable[[Any], Batch] = lambda batch: batch,
        threads: Sequence[WorkerThread[Any, Any]] = (),
    ):
        self._prepared = prepared
        self._others = None if isinstance(prepared, Handoff) else prepared
        self._unpack = unpack
        self._close_source = close_source
        self._device = recipe.plan.model.device
        self._start_delay_s = recipe.config.data.model_start_delay
        self._time_limits = TimeLimits.from_setting(recipe.config.training.watchdog_seconds)
        self._title = recipe.plan.mode.log_name
        self._has_started = False
        self._is_waiting = False
        self._meters = BatchMeters()
        self._opened_at = time.perf_counter()
        self.placed: Handoff[Batch] = Handoff("on the model device")
        """The slots on the model device."""
        self._transfer = WorkerThread("transfer", self._place, prepared, self.placed)
        self._threads = [*threads, self._transfer]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    def take(self) -> Batch:
        self._is_waiting = True
        try:
            if not self._has_started:
                self._fill_slots()
                self._has_started = True
            wait_watched(self.placed, self._threads, self._time_limits)
            return self.placed.take()
        finally:
            self._is_waiting = False

    def _fill_slots(self) -> None:
        """Waits for the first batch, then for at most the start delay until every slot has one."""
        _log.info("%s: Waiting for the first batch...", self._title)
        began_s = time.perf_counter()
        wait_watched(self.placed, self._threads, self._time_limits)
        _log.info("%s: The first batch was ready after %.1fs", self._title, time.perf_counter() - began_s)
        if self._start_delay_s and not self.placed.wait_until_full(0.0):
            _log.info("%s: Waiting up to %.1fs for data pipeline to warm up...", self._title, self._start_delay_s)
            self.placed.wait_until_full(self._start_delay_s)
        _log.info("Model training starting now")

    def advance(self) -> None:
        """Nothing to do: the next batches are prepared meanwhile."""

    def release(self) -> None:
        self.placed.release()

    def read_work(self) -> Work | None:
        """While the training waits for other processes, that it does, since the last thing that happened to one of them: one
        that dies may be started again many times. Else nothing: threads are looked at while the training waits for them."""
        if self._others is None or not self._is_waiting:
            return None
        since_s = self._others.events[-1].time_s
        return Work("waiting for a batch", None, since_s, limit_s=self._time_limits.longest_s)

    def read_facts(self) -> PipelineFacts:
        return PipelineFacts(
            elapsed_s=time.perf_counter() - self._opened_at,
            work=(*self._meters.list_work(), self._transfer.read_facts()),
            handoffs=(self._prepared.read_facts(), self.placed.read_facts()),
            meters=self._meters,
            events=() if self._others is None else tuple(self._others.events),
            preparers=() if self._others is None else self._others.list_preparers(),
        )

    def close(self) -> None:
        # First the threads: what they use is closed only when none of them uses it any more.
        try:
            stop_threads(self._threads)
        finally:
            self._close_source()

    def _place(self, item: Any) -> Batch:
        began_s = time.perf_counter()
        batch = self._unpack(item)
        self._meters += batch.info.meters
        return place_batch(batch, self._device, began_s)
