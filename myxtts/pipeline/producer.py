"""What happens inside the producer process: orders come in, batches are prepared, packed and committed.

It keeps nothing that would be missed: it may be killed at any moment, and the next producer goes on with the first batch
whose commit did not arrive.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from myxtts.pipeline.handoff import Handoff
from myxtts.pipeline.last_word import say_last_word
from myxtts.pipeline.messages import LONGEST_TEXT, Committed, Event, Ready, Replaced, dump_event
from myxtts.pipeline.process_memory import limit_own_memory, read_process_memory
from myxtts.pipeline.ring import Arrays, Ring
from myxtts.pipeline.stage import Stage
from myxtts.pipeline.status_board import StatusBoard
from myxtts.pipeline.task import ProducerTask, load_factory
from myxtts.pipeline.wire import Connection, Message


@dataclass(frozen=True)
class PreparedBatch:
    """A batch on its way into its slot."""

    slot: int
    position: int
    arrays: Arrays
    waited_s: float


class Producer:
    """Obeys orders from a connection.

    The task runs in the thread that calls `run`, and in no other. Packing has a thread of its own, so that the device is
    already preparing the next batch meanwhile.
    """

    def __init__(self, connection: Connection, board: StatusBoard, ring_descriptor: int):
        self._connection = connection
        self._board = board
        self._ring_descriptor = ring_descriptor
        self._ring: Ring | None = None
        self._task: ProducerTask | None = None
        self._stage = "start"
        self._position: int | None = None
        self._is_limited = False
        self._idle_since = 0.0
        # Two: one batch being packed, one being prepared.
        self._prepared: Handoff[PreparedBatch] = Handoff("prepared", slots=2)

    def run(self) -> int:
        """Works until the trainer closes the connection, or until an error; returns the exit code."""
        try:
            while True:
                order = self._connection.receive()
                assert order is not None
                self._obey(order)
        except BaseException as error:  # noqa: BLE001  the border of the process: whatever it was, the trainer is told
            return self._say_last_word(error, self._stage, self._position)

    def _obey(self, order: Message) -> None:
        match order:
            case {"order": "begin"}:
                self._begin(order)
            case {"order": "grant", "slot": slot, "position": position}:
                self._prepare(slot, position)
            case {"order": "replace", "positions": positions}:
                for number, position in enumerate(positions):
                    names = self._loaded_task.replace_batch(position)
                    self._send(Replaced(number, position, [name[: LONGEST_TEXT // len(names)] for name in names]))
            case _:
                raise AssertionError(f"unknown order {order}")

    def _begin(self, order: Message) -> None:
        self._ring = Ring.attach(self._ring_descriptor, order["slots"], order["slot_bytes"])
        self._enter_stage("import")
        # The task may be a module beside the user's script.
        sys.path += [entry for entry in order["path"] if entry not in sys.path]
        factory = load_factory(order["factory"])
        memory = read_process_memory(os.getpid())
        assert memory is not None
        self._enter_stage("load")
        self._task = factory(order["settings"], lambda stage: self._enter_stage(stage, self._position))
        self._enter_stage("warm-up")
        self._task.warm_up()
        Stage("pack", self._pack, self._prepared, CommitSink(self._connection)).start()
        limit_bytes = order["memory_limit_bytes"]
        if limit_bytes is not None:
            self._is_limited = True
            limit_own_memory(limit_bytes, memory.resident_bytes)
        self._enter_stage("wait")
        self._idle_since = time.perf_counter()
        self._send(Ready())

    def _prepare(self, slot: int, position: int) -> None:
        self._prepared.reserve()
        waited_s = time.perf_counter() - self._idle_since
        self._enter_stage("prepare", position)
        arrays = self._loaded_task.prepare(position)
        self._enter_stage("wait")
        self._idle_since = time.perf_counter()
        self._prepared.commit(PreparedBatch(slot, position, arrays, waited_s))

    def _pack(self, batch: PreparedBatch) -> Committed:
        assert self._ring is not None
        try:
            layout = self._ring.pack(batch.slot, batch.arrays)
        except BaseException as error:  # noqa: BLE001  the border of the process, in its other thread
            os._exit(self._say_last_word(error, "pack", batch.position))
        return Committed(batch.slot, batch.position, layout, batch.waited_s, time.perf_counter())

    @property
    def _loaded_task(self) -> ProducerTask:
        assert self._task is not None, "the first order is `begin`"
        return self._task

    def _enter_stage(self, stage: str, position: int | None = None) -> None:
        self._stage, self._position = stage, position
        self._board.write(stage, position)

    def _send(self, event: Event) -> None:
        self._connection.send(dump_event(event))

    def _say_last_word(self, error: BaseException, stage: str, position: int | None) -> int:
        return say_last_word(self._connection, error, stage, position, is_limited=self._is_limited)


class CommitSink:
    """The packing stage's end: what it hands on goes to the trainer, which has granted the slot beforehand."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def reserve(self) -> None:
        pass

    def commit(self, event: Committed) -> None:
        self._connection.send(dump_event(event))

    def finish(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        # Only sending can have failed, and only because the trainer is gone.
        os._exit(0)

    def stop(self) -> None:
        pass
