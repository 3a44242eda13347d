"""The trainer's side of the producer process: a source of prepared batches that survives the producer.

A batch counts once its commit message has arrived. What was committed stays valid when the producer dies; what was
not is granted to the next producer, in the same slot. So every position is handed on once and in order, whenever and
however often the producer is killed.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from numpy.typing import NDArray

from myxtts.errors import ProducerFailedError
from myxtts.pipeline import producer
from myxtts.pipeline.producer import OUT_OF_MEMORY_EXIT_CODE
from myxtts.pipeline.ring import ArraySpec, Ring, SlotTable
from myxtts.pipeline.threads import SLOTS, EndOfStream, HandoffFacts, StallWatch, Stopped, TimeLimits, WaitMeter, Work
from myxtts.processes import (
    ChildConnection,
    ChildProcess,
    Message,
    PeerGone,
    ProcessMemory,
    count_oom_kills,
    read_process_memory,
)

_log = logging.getLogger(__name__)

MOST_RESTARTS = 10
"""Without a batch in between."""
MOST_REPLACED = 4
"""Batches, without one that could be made in between."""
_STOP_S = 2.0
_LISTEN_S = 0.1
"""Between two looks at whether to stop, and at the producer's memory."""
_MEMORY_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT})
"""How code that does not expect to be refused memory ends. TensorFlow's convolutions do."""


class FilledSlot(NamedTuple):
    """A batch in its slot."""

    position: int
    arrays: dict[str, NDArray[Any]]
    """Views of the slot, to be copied before it is released."""


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
    """Of an exit: the end of what the process wrote, its stacks when it hung or crashed."""


class PreparedBatches(ABC):
    """Batches that other processes prepare, in order. One thread takes and releases, any may stop it.

    Args:
        name: of the hand-off.
        rows: clips that are prepared at a time, as long as memory suffices; None where the task does not say.
    """

    def __init__(self, name: str, rows: int | None):
        self._lock = threading.Lock()
        self._meter = WaitMeter(name, time.perf_counter)
        self._recovery = Recovery(rows)
        self._replaced: list[int] = []
        """Batches whose clips are replaced because two producers died at them; again, where two more did."""
        self._events: list[ProducerEvent] = []
        self._failure: ProducerFailedError | None = None
        self._is_stopped = False

    @property
    def events(self) -> list[ProducerEvent]:
        """What happened to those who prepare, so far."""
        return list(self._events)

    def take(self) -> FilledSlot:
        """The batch at the next position, as views of its slot.

        Raises `EndOfStream`, `Stopped`, or `ProducerFailedError` when nothing can help, then and from then on.
        """
        with self._lock, self._meter.waiting("taker"):
            if self._failure is not None:
                raise self._failure
            try:
                return self._take()
            except ProducerFailedError as error:
                self._failure = error
                raise

    @abstractmethod
    def release(self) -> None:
        """Says that nothing shows the memory of the batch taken first any more: it will show another batch."""

    def stop(self) -> None:
        """Makes `take` raise `Stopped`, now and from now on. For any thread."""
        self._is_stopped = True

    def read_facts(self) -> HandoffFacts:
        """Who waited for whom. The giver's waiting is its own measure of it."""
        return self._meter.read()

    def list_preparers(self) -> tuple[HandoffFacts, ...]:
        """The same for each of several that prepare beside each other; none where there is one at a time."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Ends all who prepare, and gives everything back."""

    @abstractmethod
    def _take(self) -> FilledSlot: ...

    def _decide(self, end: ProducerExit) -> int | None:
        """Draws the conclusions of an end; the batch that has other clips from now on, if any."""
        before = self._recovery.preparation_batch
        position = self._recovery.decide(end)
        if (rows := self._recovery.preparation_batch) != before:
            self._record("shrunk", end.position, f"preparation batch {rows} after {before}")
            _log.warning("Preparing %d rows at a time instead of %d.", rows, before)
        if position is not None:
            self._replaced.append(position)
        return position

    def _record(self, kind: str, position: int | None, reason: str, report: str = "") -> None:
        self._events.append(ProducerEvent(time.time(), kind, position, reason, report))


class ProducerProcess(PreparedBatches):
    """Batches prepared in a process of its own, which starts at once. A `Source`.

    Args:
        task: what the process prepares: `package.module:function`, called there as `function(settings, report)`; returns a
            `ProducerTask`.
        settings: JSON values. `preparation_batch`, where present, is how many rows are prepared at a time; it is halved when the
            process runs out of memory.
        slot_bytes: the largest batch.
        end_position: the first position that is not wanted; None for a stream without end.
        memory_limit_bytes: what the task may take beyond its imports, enforced by the operating system after warm-up.
            None where the device enforces its own limit.
    """

    def __init__(
        self,
        task: str,
        settings: Mapping[str, Any],
        *,
        slot_bytes: int,
        first_position: int = 0,
        end_position: int | None = None,
        memory_limit_bytes: int | None = None,
        time_limits: TimeLimits | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        super().__init__("producer", settings.get("preparation_batch"))
        self._task, self._settings = task, settings
        self._memory_limit_bytes = memory_limit_bytes
        self._time_limits = time_limits or TimeLimits()
        self._environment = environment
        self._slots = SlotTable(SLOTS, first_position, end_position)
        self._told: set[tuple[int, str]] = set()
        """What producers before this one have said of replaced batches."""
        self._process: ProducerHandle | None = None
        self._is_closed = False
        self._ring = Ring.create(SLOTS, slot_bytes)
        try:
            # Loading and warm-up happen there, beside this process.
            self._start()
        except BaseException:
            self.close()
            raise

    def release(self) -> None:
        with self._lock:
            granted = self._slots.release()
            if self._process is not None:
                self._process.order_batches(granted)

    def close(self) -> None:
        """Ends the process, waits for it, and gives its memory back."""
        self.stop()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._process is not None:
                    process, self._process = self._process, None
                    process.close()
            finally:
                self._ring.close()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def _take(self) -> FilledSlot:
        # Made anew: the silence of a time in which nobody listened is not the producer's.
        watch = StallWatch(self._time_limits)
        while not self._is_stopped:
            # An exit is seen to before a ready batch is handed on: the next producer needs time to start.
            while self._process is not None and (event := self._process.receive()) is not None:
                self._heed(event)
            if (ready := self._slots.take()) is not None:
                position, layout = ready
                self._recovery.note_progress(position)
                self._meter.note_taken()
                return FilledSlot(position, self._ring.read(position, layout))
            if self._slots.is_at_end():
                raise EndOfStream
            assert self._slots.list_granted(), "every slot is taken: release one before taking another"
            assert self._process is not None, "there is work left"
            self._heed(self._process.wait(watch))
        raise Stopped

    def _heed(self, event: Message | ProducerExit | None) -> None:
        match event:
            case ProducerExit():
                self._process = None
                self._recover(event)
            case {"event": "committed", "position": position, "layout": layout, "made_at": at, "waited_s": waited_s}:
                self._slots.commit(position, [ArraySpec(name, dtype, tuple(shape)) for name, dtype, shape in layout])
                self._meter.note_ready(at, waited_s)
            case {"event": "replaced", "position": position, "names": names}:
                told = position, ", ".join(names)
                if told not in self._told:
                    self._told.add(told)
                    self._record("replaced", *told)
                    what = "Batch %d killed two producers: its %d clips are replaced: %s."
                    _log.warning(what, position, len(names), told[1])
            case {"event": "ready"}:
                self._record("ready", None, "loaded and warm")

    def _recover(self, end: ProducerExit) -> None:
        self._record("died", end.position, str(end), end.report)
        _log.warning("The producer died: %s.%s", end, end.quote_report())
        if not self._slots.has_work_left():
            return
        self._decide(end)
        self._start()

    def _start(self) -> None:
        begin: Message = {
            "order": "begin",
            "task": self._task,
            "settings": {**self._settings, "preparation_batch": self._recovery.preparation_batch},
            # Where this process would find the task.
            "path": [os.path.abspath(entry) for entry in sys.path],
            "slot_bytes": self._ring.slot_bytes,
            "memory_limit_bytes": self._memory_limit_bytes,
        }
        replaced: list[Message] = [{"order": "replace", "position": position} for position in self._replaced]
        child = ChildProcess(producer.__name__, descriptors=[self._ring.fileno()], environment=self._environment)
        self._process = ProducerHandle(child, self._time_limits, is_limited=self._memory_limit_bytes is not None)
        self._process.give(begin, *replaced)
        self._process.order_batches(self._slots.list_granted())
        self._record("started", self._slots.next_position, f"process {child.pid}")


class ProducerHandle:
    """A running producer process."""

    def __init__(self, child: ChildProcess, limits: TimeLimits, *, is_limited: bool):
        self._child, self._limits, self._is_limited = child, limits, is_limited
        self._connection = ChildConnection(child.socket, blocking=False)
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._has_worked = False
        self._exit_message: Message | None = None
        self._begun = 0
        """How often it has said what it is doing: a change proves that it is not hanging."""
        self._doing = "start"
        self._position: int | None = None
        self._memory: ProcessMemory | None = None
        self._oom_kills = count_oom_kills()

    @property
    def pid(self) -> int:
        return self._child.pid

    def give(self, *orders: Message) -> None:
        """Sends orders. A producer that is gone is noticed in `receive`."""
        with suppress(PeerGone):
            for order in orders:
                self._connection.send(order)

    def order_batches(self, positions: Iterable[int]) -> None:
        self.give(*({"order": "grant", "position": position} for position in positions))

    def receive(self) -> Message | ProducerExit | None:
        """What the producer said next, its exit, or None when it has said nothing.

        After an exit nothing of the process is left. Raises `ProducerFailedError` for an error of the task itself.
        """
        while True:
            try:
                event = self._connection.receive()
            except PeerGone:
                return self._reap(None)
            if event is None or self._is_news(event):
                return event

    def wait(self, watch: StallWatch) -> Message | ProducerExit | None:
        """As `receive`, after waiting for a moment; a producer that is silent for too long is killed."""
        has_ended = self._child.has_ended()
        # First waited, then read: a process that has just been started has a few pages, which would look like its size.
        self._poll.poll(min(_LISTEN_S, self._limits.look_s) * 1000)
        self._read_memory()
        if (event := self.receive()) is not None:
            return event
        if has_ended:
            # Something it started holds its end of the connection open.
            return self._reap(None)
        stall = watch.look(Work(self._doing, self._begun, 0.0, limit_s=self._find_time_limit()))
        if stall is None:
            return None
        self._child.write_stacks()
        self._read_memory()
        self._child.kill()
        return self._reap((ExitCause.HANG, f"said nothing for {stall.limit_s:g} s"))

    def close(self) -> None:
        self._child.close(_STOP_S)

    def _is_news(self, event: Message) -> bool:
        """Takes in what is about this process itself; whether there is anything in it for others."""
        match event:
            case {"event": "doing", "doing": doing, "position": position}:
                self._doing, self._position = doing, position
                self._begun += 1
                return False
            case {"event": "ready"}:
                self._read_memory()
            case {"event": "committed"}:
                self._has_worked = True
                self._read_memory()
                self._child.trim_output()
            case {"event": "exit", "ran_out": True}:
                self._exit_message = event
                return False
            # An error that another try would only repeat.
            case {"event": "exit", "doing": doing, "position": position}:
                raise ProducerFailedError(
                    f"The producer failed {_describe_place(doing, position)}: {event['summary']}\n"
                    f"In the producer process:\n{event['traceback'].rstrip()}"
                )
        return True

    def _read_memory(self) -> None:
        self._memory = read_process_memory(self.pid) or self._memory

    def _find_time_limit(self) -> float:
        if self._doing in ("start", "import", "load"):
            return self._limits.import_s
        return self._limits.steady_s if self._has_worked else self._limits.first_s

    def _reap(self, reason: tuple[ExitCause, str] | None) -> ProducerExit:
        """Waits for the process, and finds out where and why it ended as far as that is not known."""
        exit_code = self._child.wait()
        output = self._child.read_output()
        self.close()
        doing, position = self._doing, self._position
        if reason is None and self._exit_message is not None:
            doing, position = self._exit_message["doing"], self._exit_message["position"]
            reason = ExitCause.OUT_OF_MEMORY, self._exit_message["summary"]
        elif reason is None:
            oom_kills = count_oom_kills() - self._oom_kills
            reason = classify_exit(exit_code, is_limited=self._is_limited, oom_kills=oom_kills)
        return ProducerExit(*reason, doing, position, self._memory, output)


class ExitCause(StrEnum):
    OUT_OF_MEMORY = "out of memory"
    PROBABLY_OUT_OF_MEMORY = "probably out of memory"
    SIGNAL = "signal"
    EXIT = "exit"
    HANG = "hang"


@dataclass(frozen=True)
class ProducerExit:
    """The end of one producer process."""

    cause: ExitCause
    detail: str
    doing: str
    """What it had last said it was doing."""
    position: int | None
    """The batch it was working on, if any."""
    memory: ProcessMemory | None
    report: str
    """The end of what it wrote to its standard error."""

    def __str__(self) -> str:
        where = _describe_place(self.doing, self.position)
        memory = "memory unknown" if self.memory is None else str(self.memory)
        detail = "" if self.detail == self.cause else f" ({self.detail})"
        return f"{self.cause}{detail} {where}; last memory reading: {memory}"

    def quote_report(self) -> str:
        """The report as a paragraph to put behind a sentence; empty when there is none."""
        return f"\nIts last words:\n{self.report}" if self.report else ""


def _describe_place(doing: str, position: int | None) -> str:
    return f"in stage {doing!r}" + ("" if position is None else f" of batch {position}")


def classify_exit(exit_code: int, *, is_limited: bool, oom_kills: int) -> tuple[ExitCause, str]:
    """Cause and detail of an exit that nobody announced; `oom_kills` are those of the kernel while the producer ran."""
    if exit_code == OUT_OF_MEMORY_EXIT_CODE:
        return ExitCause.OUT_OF_MEMORY, ExitCause.OUT_OF_MEMORY
    if exit_code >= 0:
        return ExitCause.EXIT, f"exit code {exit_code}"
    number = -exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if is_limited and number in _MEMORY_SIGNALS:
        return ExitCause.PROBABLY_OUT_OF_MEMORY, f"{name} under a memory limit"
    # A limit on address space never ends in SIGKILL, so the limit says nothing about it; the kernel's own count does.
    if number == signal.SIGKILL and oom_kills > 0:
        return ExitCause.PROBABLY_OUT_OF_MEMORY, f"{name} while the machine was out of memory"
    return ExitCause.SIGNAL, name


class Recovery:
    """Remembers exits and decides about each."""

    def __init__(self, preparation_batch: int | None):
        self.preparation_batch = preparation_batch
        """Rows prepared at a time, or None when the task does not say."""
        self._restarts = self._replaced = 0
        self._suspect: int | None = None
        """The batch at which a producer has died; a second one there has it replaced."""

    def note_progress(self, position: int) -> None:
        """A batch was made: exits at it no longer count. Those at a later one do: it is still to be made."""
        self._restarts = self._replaced = 0
        if self._suspect is not None and position >= self._suspect:
            self._suspect = None

    def decide(self, end: ProducerExit) -> int | None:
        """The batch that must have other clips before the next producer starts, if any does.

        Raises `ProducerFailedError` when nothing is left to try.
        """
        if end.cause in (ExitCause.OUT_OF_MEMORY, ExitCause.PROBABLY_OUT_OF_MEMORY):
            if self.preparation_batch is not None and self.preparation_batch > 1:
                self.preparation_batch //= 2
                self._suspect = None
                return None
            if end.cause is ExitCause.OUT_OF_MEMORY:
                raise ProducerFailedError(
                    "Preparing one clip at a time does not fit into the producer's memory. Raise --data-gpu-memory, or drop the "
                    f"longest clips. The producer ended with: {end}{end.quote_report()}"
                )
        self._restarts += 1
        is_to_blame = end.position is not None and end.position == self._suspect
        if self._restarts > MOST_RESTARTS or (is_to_blame and self._replaced == MOST_REPLACED):
            replaced = f", though its clips were replaced {self._replaced} times" if self._replaced else ""
            raise ProducerFailedError(
                f"The producer died {self._restarts} times without preparing a batch{replaced}. "
                f"Last: {end}{end.quote_report()}"
            )
        if is_to_blame:
            self._replaced += 1
            self._suspect = None
            return end.position
        # One that has nothing to do with a batch blames none.
        self._suspect = self._suspect if end.position is None else end.position
        return None
