"""The trainer's side of the producer process: a source of prepared batches that survives the producer.

A batch counts once its commit message has arrived. What was committed stays valid when the producer dies; what was
not is granted to the next producer, in the same slot. So every position is handed on once and in order, whenever and
however often the producer is killed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.death import Death
from myxtts.pipeline.handoff import SLOTS, EndOfStream
from myxtts.pipeline.messages import (
    Committed,
    Event,
    Ready,
    Replaced,
    TaskSpec,
    order_begin,
    order_grant,
    order_replace,
)
from myxtts.pipeline.producer_life import Launch, ProducerLife
from myxtts.pipeline.recovery import Recovery
from myxtts.pipeline.ring import Ring, SlotTable
from myxtts.pipeline.stage import TimeLimits
from myxtts.pipeline.waiting import HandoffFacts, SharedMeter
from myxtts.pipeline.wake import Wake

_log = logging.getLogger(__name__)


class FilledSlot(NamedTuple):
    """A batch in its slot."""

    position: int
    arrays: dict[str, NDArray[Any]]
    """Views of the slot, to be copied before it is released: `ring.copy_arrays`."""


@dataclass(frozen=True)
class ProducerEvent:
    """Something worth telling about a producer."""

    time_s: float
    """Seconds since the epoch."""
    kind: str
    """started, ready, died, shrunk, replaced."""
    position: int | None
    reason: str
    report: str = ""
    """Of a death: the end of what the process wrote, its stacks when it hung or crashed."""


class ProducerProcess:
    """Batches prepared in a process of its own. A `Source`: one thread takes and releases, any thread may stop it.

    Args:
        task: what the process prepares. In `settings`, `preparation_batch` is halved when memory runs out.
        slot_bytes: the largest batch.
        first_position: where to begin; batches come in the order of positions.
        end_position: the first position that is not wanted; None for a stream without end.
        memory_limit_bytes: what the task may take beyond its imports, enforced by the operating system after warm-up.
            None where the device enforces its own limit.
        environment: the process's environment variables; by default those of this one.
    """

    def __init__(
        self,
        task: TaskSpec,
        *,
        slot_bytes: int,
        slots: int = SLOTS,
        first_position: int = 0,
        end_position: int | None = None,
        memory_limit_bytes: int | None = None,
        time_limits: TimeLimits | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._task = task
        self._memory_limit_bytes = memory_limit_bytes
        self._time_limits = time_limits or TimeLimits()
        self._environment = dict(os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._slots = SlotTable(slots, first_position, end_position)
        self._recovery = Recovery(task.settings.get("preparation_batch"))
        self._replaced: list[int] = []
        self._replaced_told = 0
        self._failure: ProducerFailedError | None = None
        self._events: list[ProducerEvent] = []
        self._meter = SharedMeter("producer", clock)
        self._life: ProducerLife | None = None
        self._is_closed = False
        self._ring = Ring.create(slots, slot_bytes)
        self._wake = Wake()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts the process. Returns at once; loading and warm-up happen there."""
        with self._lock:
            self._slots.grant_free()
            self._start_life()

    def take(self) -> FilledSlot:
        """The batch at the next position, as views of its slot.

        Raises `EndOfStream`, `Stopped`, or `ProducerFailedError` when no restart can help.
        """
        with self._lock, self._meter.taking():
            try:
                return self._take()
            except ProducerFailedError as error:
                self._failure = error
                raise

    def release(self) -> None:
        """Frees the slot of the batch taken first: its views will show another batch."""
        with self._lock:
            self._slots.release()
            grants = self._slots.grant_free()
            if self._life is not None:
                self._life.give(order_grant(grant.slot, grant.position) for grant in grants)

    def stop(self) -> None:
        """Makes `take` raise `Stopped`, now and from now on. For any thread."""
        self._wake.set()

    def close(self) -> None:
        """Ends the process, waits for it, and gives its memory back."""
        self.stop()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._end_life()
            finally:
                self._ring.close()
                self._wake.close()

    @property
    def pid(self) -> int | None:
        """The present process, if there is one."""
        life = self._life
        return None if life is None else life.pid

    @property
    def preparation_batch(self) -> int | None:
        """Rows prepared at a time, after what running out of memory has made of it."""
        return self._recovery.preparation_batch

    @property
    def replaced(self) -> list[int]:
        """The batches whose clips were replaced because two producers died at them; again, where two more did."""
        return list(self._replaced)

    @property
    def events(self) -> list[ProducerEvent]:
        """What happened to the producers so far."""
        return list(self._events)

    @property
    def longest_silence_s(self) -> float:
        """How long one life of it may go on without a batch; it is ended by then."""
        return self._time_limits.longest_s

    def read_facts(self, reset: bool = False) -> HandoffFacts:
        """Who waited for whom. The giver's waiting is the process's own measure of it."""
        return self._meter.read(reset)

    def _take(self) -> FilledSlot:
        while True:
            self._wake.check()
            if self._failure is not None:
                raise self._failure
            # A death is seen to before a ready batch is handed on: the next producer needs time to start.
            while self._life is not None and (event := self._life.receive()) is not None:
                self._handle(event)
            prepared = self._open_ready_slot()
            if prepared is not None:
                return prepared
            if self._slots.is_at_end():
                raise EndOfStream
            if self._life is None:
                self._start_life()
            else:
                assert self._slots.is_waiting(), "every slot is taken: release one before taking another"
                self._handle(self._life.wait(self._wake))

    def _open_ready_slot(self) -> FilledSlot | None:
        """Takes the next batch if it is ready."""
        ready = self._slots.find_ready()
        if ready is None:
            return None
        grant, layout = ready
        arrays = self._ring.read(grant.slot, layout)
        self._slots.take()
        self._recovery.note_progress(grant.position)
        self._meter.note_taken()
        return FilledSlot(grant.position, arrays)

    def _handle(self, event: Event | Death) -> None:
        match event:
            case Death():
                self._life = None
                self._recover(event)
            case Committed():
                self._slots.commit(event.slot, event.position, event.layout)
                self._meter.note_ready(event.made_at, event.waited_s)
            case Replaced():
                self._note_replaced(event)
            case Ready():
                self._record("ready", None, "loaded and warm")

    def _note_replaced(self, event: Replaced) -> None:
        # Every producer is given the whole list and answers all of it; what one before it has answered is no news.
        if event.number < self._replaced_told:
            return
        self._replaced_told = event.number + 1
        names = ", ".join(event.names)
        self._record("replaced", event.position, names)
        _log.warning(
            "Batch %d killed two producers: its %d clips are replaced: %s.", event.position, len(event.names), names
        )

    def _recover(self, death: Death) -> None:
        self._record("died", death.position, str(death), death.report)
        _log.warning("The producer died: %s.%s", death, death.quote_report())
        if not self._slots.has_work_left():
            return
        before = self._recovery.preparation_batch
        position = self._recovery.decide(death)
        if self._recovery.preparation_batch != before:
            self._record(
                "shrunk", death.position, f"preparation batch {self._recovery.preparation_batch} after {before}"
            )
            _log.warning("Preparing %d rows at a time instead of %d.", self._recovery.preparation_batch, before)
        if position is not None:
            self._replaced.append(position)
        self._start_life()

    def _start_life(self) -> None:
        settings = dict(self._task.settings)
        if self._recovery.preparation_batch is not None:
            settings["preparation_batch"] = self._recovery.preparation_batch
        task = replace(self._task, settings=settings)
        orders = [order_begin(task, self._ring.slots, self._ring.slot_bytes, self._memory_limit_bytes)]
        if self._replaced:
            orders.append(order_replace(self._replaced))
        orders += [order_grant(grant.slot, grant.position) for grant in self._slots.list_granted()]
        self._life = ProducerLife(
            Launch(
                ring_descriptor=self._ring.fileno(),
                environment=self._environment,
                orders=tuple(orders),
                is_limited=self._memory_limit_bytes is not None,
                limits=self._time_limits,
            )
        )
        self._record("started", self._slots.next_position, f"process {self._life.pid}")

    def _end_life(self) -> None:
        if self._life is not None:
            life, self._life = self._life, None
            life.end()

    def _record(self, kind: str, position: int | None, reason: str, report: str = "") -> None:
        self._events.append(ProducerEvent(time.time(), kind, position, reason, report))
