"""The producer process, `python -m myxtts.pipeline.producer`: orders come in, batches are prepared, packed and committed.

It keeps nothing that would be missed: it may be killed at any moment, and the next producer goes on with the first batch
whose commit did not arrive. `producer_client` is the trainer's side of it.

Orders and events are small JSON objects. Orders: `begin` (load a task), `grant` (prepare a batch and put it into its slot),
`replace` (use the clips of these batches no more there; of one that stands there again, its new clips too). Events: `ready`
(loaded and warm), `committed` (the slot of a batch is written), `replaced`, and `exit`, the last one.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pkgutil
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self

from myxtts.pipeline.ring import Arrays, Ring
from myxtts.pipeline.slots import SLOTS, Handoff
from myxtts.pipeline.worker import WorkerThread
from myxtts.processes import (
    ChildConnection,
    Message,
    PeerGone,
    enter_child,
    lift_own_memory_limit,
    limit_own_memory,
    read_process_memory,
)

LONGEST_TEXT = 8000
"""Characters of a message; each takes up to six bytes in it, and a message must stay whole."""
OUT_OF_MEMORY_EXIT_CODE = 79
FAILED_EXIT_CODE = 70
_DISGUISES = (
    "cannot allocate memory",
    "failed to map segment from shared object",  # ImportError of a module that is loaded late
    "can't start new thread",
)

_BOARD_BYTES = mmap.PAGESIZE
_COUNT = struct.Struct("<Q")
_RECORD = struct.Struct("<q504s")
_NO_POSITION = -1
_READ_TRIES = 100

Report = Callable[[str], None]
"""Says what is being done now. It stands in the report when the producer dies, and proves that it is not hanging.

Costs next to nothing, so it may be called for every step of the work.
"""


class ProducerTask(Protocol):
    """Prepares batches by their position in the run.

    A position's batch must be a pure function of the settings, the position and which batches were replaced: a position
    that was prepared by a producer that died is prepared again by the next one.
    """

    def warm_up(self) -> None:
        """Does what takes long the first time. Memory limits hold from here on."""

    def prepare(self, position: int) -> Arrays:
        """The batch at a position.

        Its arrays must not change any more: they are packed while the next batch is being prepared.
        """

    def replace_batch(self, position: int) -> list[str]:
        """Prepares a position with other clips from now on, and returns the names of those it had.

        Called again for the same position, it replaces the replacements.
        """


class Status(NamedTuple):
    """What was last written."""

    writes: int
    """How often something was written: a change proves that the producer is not hanging."""
    doing: str
    position: int | None
    """The batch that is being worked on, if any."""


class StatusBoard:
    """A page of shared memory with what the producer is doing.

    Of two records the count names the valid one, and is written last: whenever the writer is killed, one record is whole.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._page = mmap.mmap(descriptor, _BOARD_BYTES)

    @classmethod
    def create(cls) -> Self:
        """A board that says `start`."""
        descriptor = os.memfd_create("myxtts-status")
        try:
            os.posix_fallocate(descriptor, 0, _BOARD_BYTES)
            board = cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        board.write("start", None)
        return board

    def fileno(self) -> int:
        return self._descriptor

    def write(self, doing: str, position: int | None) -> None:
        (count,) = _COUNT.unpack_from(self._page)
        text = doing.encode("utf-8", "replace")
        _RECORD.pack_into(self._page, _find_record(count + 1), _NO_POSITION if position is None else position, text)
        _COUNT.pack_into(self._page, 0, count + 1)

    def read(self) -> Status:
        # A record is overwritten only by the second write after it; one that keeps pace with this loop is no sound producer.
        for _ in range(_READ_TRIES):
            (count,) = _COUNT.unpack_from(self._page)
            position, text = _RECORD.unpack_from(self._page, _find_record(count))
            if _COUNT.unpack_from(self._page) == (count,):
                break
        doing = text.rstrip(b"\0").decode("utf-8", "replace")
        return Status(count, doing, None if position == _NO_POSITION else position)

    def close(self) -> None:
        self._page.close()
        os.close(self._descriptor)


def _find_record(count: int) -> int:
    return _RECORD.size * (1 + count % 2)


class PackedNext(NamedTuple):
    """A batch on its way into its slot."""

    position: int
    arrays: Arrays
    waited_s: float


class Producer:
    """Obeys orders from a connection.

    The task runs in the thread that calls `run`, and in no other. Packing has a thread of its own, so that the device is
    already preparing the next batch meanwhile.
    """

    def __init__(self, connection: ChildConnection, board: StatusBoard, ring_descriptor: int):
        self._connection = connection
        self._board = board
        self._ring_descriptor = ring_descriptor
        self._doing = "start"
        self._position: int | None = None
        self._is_limited = False
        self._idle_since = 0.0
        # Two: one batch being packed, one being prepared.
        self._prepared: Handoff[PackedNext] = Handoff("prepared", slots=2)

    def run(self) -> int:
        """Works until the trainer closes the connection, or until an error; returns the exit code."""
        try:
            order = self._connection.receive()
            assert order is not None
            task = self._begin(order)
            while True:
                self._obey(task, self._connection.receive())
        except BaseException as error:  # noqa: BLE001  the border of the process: whatever it was, the trainer is told
            return self._send_exit_message(error, self._doing, self._position)

    def _begin(self, order: Message) -> ProducerTask:
        ring = Ring.attach(self._ring_descriptor, SLOTS, order["slot_bytes"])
        self._begin_doing("import")
        # The task may be a module beside the user's script.
        sys.path += [entry for entry in order["path"] if entry not in sys.path]
        factory = pkgutil.resolve_name(order["task"])
        memory = read_process_memory(os.getpid())
        assert memory is not None
        self._begin_doing("load")
        task: ProducerTask = factory(order["settings"], lambda doing: self._begin_doing(doing, self._position))
        self._begin_doing("warm-up")
        task.warm_up()
        WorkerThread("pack", partial(self._pack, ring), self._prepared, CommitSink(self._connection)).start()
        limit_bytes = order["memory_limit_bytes"]
        if limit_bytes is not None:
            self._is_limited = True
            limit_own_memory(limit_bytes, memory.resident_bytes)
        self._begin_doing("wait")
        self._idle_since = time.perf_counter()
        self._connection.send({"event": "ready"})
        return task

    def _obey(self, task: ProducerTask, order: Message | None) -> None:
        match order:
            case {"order": "grant", "position": position}:
                self._prepare(task, position)
            case {"order": "replace", "positions": positions}:
                for number, position in enumerate(positions):
                    names = task.replace_batch(position)
                    cut = [name[: LONGEST_TEXT // len(names)] for name in names]
                    # The number is that in the order, for a trainer that has heard some of it before.
                    self._connection.send({"event": "replaced", "number": number, "position": position, "names": cut})
            case _:
                raise AssertionError(f"unknown order {order}")

    def _prepare(self, task: ProducerTask, position: int) -> None:
        self._prepared.reserve()
        waited_s = time.perf_counter() - self._idle_since
        self._begin_doing("prepare", position)
        arrays = task.prepare(position)
        self._begin_doing("wait")
        self._idle_since = time.perf_counter()
        self._prepared.commit(PackedNext(position, arrays, waited_s))

    def _pack(self, ring: Ring, batch: PackedNext) -> Message:
        try:
            layout = ring.pack(batch.position, batch.arrays)
        except BaseException as error:  # noqa: BLE001  the border of the process, in its other thread
            os._exit(self._send_exit_message(error, "pack", batch.position))
        # The clock is one that all processes of a machine share.
        times = {"waited_s": batch.waited_s, "made_at": time.perf_counter()}
        return {"event": "committed", "position": batch.position, "layout": layout, **times}

    def _begin_doing(self, doing: str, position: int | None = None) -> None:
        self._doing, self._position = doing, position
        self._board.write(doing, position)

    def _send_exit_message(self, error: BaseException, doing: str, position: int | None) -> int:
        return send_exit_message(self._connection, error, doing, position, is_limited=self._is_limited)


class CommitSink:
    """The packing worker's end: what it hands on goes to the trainer, which has granted the slot beforehand."""

    def __init__(self, connection: ChildConnection):
        self._connection = connection

    def reserve(self) -> None:
        pass

    def commit(self, event: Message) -> None:
        self._connection.send(event)

    def finish(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        # Only sending can have failed, and only because the trainer is gone.
        os._exit(0)

    def stop(self) -> None:
        pass


def send_exit_message(
    connection: ChildConnection, error: BaseException, doing: str, position: int | None, *, is_limited: bool
) -> int:
    """Tells the trainer why this process ends, and returns the exit code it should end with."""
    if isinstance(error, PeerGone):
        # The trainer is gone or has closed the connection: there is nothing to tell, and nobody to tell it to.
        return 0
    lift_own_memory_limit()
    ran_out = is_out_of_memory(error, is_limited=is_limited)
    with contextlib.suppress(PeerGone, MemoryError):
        summary = f"{type(error).__name__}: {error}"[: LONGEST_TEXT // 4]
        # Of a long traceback the end says more than the beginning.
        trace = "".join(traceback.format_exception(error))[-LONGEST_TEXT // 2 :]
        place = {"doing": doing, "position": position}
        connection.send({"event": "exit", **place, "ran_out": ran_out, "summary": summary, "traceback": trace})
    return OUT_OF_MEMORY_EXIT_CODE if ran_out else FAILED_EXIT_CODE


def is_out_of_memory(error: BaseException | None, *, is_limited: bool) -> bool:
    """Whether an error, or what it was raised from, says that memory ran out.

    TensorFlow's error is known by its name, so that a producer imports TensorFlow only when its task does.

    Args:
        is_limited: whether the operating system limits this process's memory. What is refused then comes in disguise.
    """
    while error is not None:
        names = {cls.__name__ for cls in type(error).__mro__}
        if names & {"MemoryError", "ResourceExhaustedError"}:
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if is_limited and any(text in str(error).lower() for text in _DISGUISES):
            return True
        error = error.__cause__
    return False


def main(arguments: Sequence[str]) -> int:
    """Works for the trainer at the other end of these descriptors; returns the exit code."""
    end, (status, ring) = enter_child(arguments)
    return Producer(ChildConnection(end, blocking=True), StatusBoard(status), ring).run()


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    if exit_code != 0:
        # A task that failed may have left threads behind, and these must not keep the process alive.
        sys.stderr.flush()
        os._exit(exit_code)
