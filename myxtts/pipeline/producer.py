"""The producer process, `python -m myxtts.pipeline.producer`: orders come in, batches are prepared, packed and committed.

It may be killed at any moment: the next producer goes on with the first batch whose commit did not arrive. `producer_client` is the
trainer's side. Orders are `begin` (load a task), `grant` (prepare a batch and put it into its slot) and `replace` (use the clips of a
batch no more there; ordered again, its new clips too). Events are `doing` (what it has begun with, which proves that it is not
hanging), `ready` (loaded and warm), `committed` (the slot of a batch is written), `replaced`, and `exit`, the last one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from myxtts.pipeline.ring import Arrays, Ring
from myxtts.pipeline.threads import SLOTS, SideThread
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

Report = Callable[[str], None]
"""Says what is being done now. Some microseconds: it may be called for every step of the work."""


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


class Producer:
    """Obeys orders from a connection.

    The task runs in the thread that calls `run`, and in no other. Packing has a thread of its own, so that the device is
    already preparing the next batch meanwhile.
    """

    def __init__(self, connection: ChildConnection, ring_descriptor: int):
        self._connection = connection
        self._ring_descriptor = ring_descriptor
        self._doing = "start"
        self._position: int | None = None
        self._is_limited = False
        self._idle_since = 0.0

    def run(self) -> int:
        """Works until the trainer closes the connection, or until an error; returns the exit code."""
        try:
            order = self._connection.receive()
            assert order is not None
            ring = Ring.attach(self._ring_descriptor, SLOTS, order["slot_bytes"])
            task = self._begin(order)
            while True:
                self._obey(task, ring, self._connection.receive())
        except BaseException as error:  # noqa: BLE001  the border of the process: whatever it was, the trainer is told
            place = self._doing, self._position
            return send_exit_message(self._connection, error, *place, is_limited=self._is_limited)

    def _begin(self, order: Message) -> ProducerTask:
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
        self._packing = SideThread("pack")
        limit_bytes = order["memory_limit_bytes"]
        if limit_bytes is not None:
            self._is_limited = True
            limit_own_memory(limit_bytes, memory.resident_bytes)
        self._begin_doing("wait")
        self._idle_since = time.perf_counter()
        self._connection.send({"event": "ready"})
        return task

    def _obey(self, task: ProducerTask, ring: Ring, order: Message | None) -> None:
        match order:
            case {"order": "grant", "position": position}:
                self._prepare(task, ring, position)
            case {"order": "replace", "position": position}:
                names = task.replace_batch(position)
                cut = [name[: LONGEST_TEXT // len(names)] for name in names]
                self._connection.send({"event": "replaced", "position": position, "names": cut})
            case _:
                raise AssertionError(f"unknown order {order}")

    def _prepare(self, task: ProducerTask, ring: Ring, position: int) -> None:
        waited_s = time.perf_counter() - self._idle_since
        self._begin_doing("prepare", position)
        arrays = task.prepare(position)
        self._begin_doing("wait")
        self._idle_since = time.perf_counter()
        # Two batches at most: the one before is packed by now, or waited for here.
        self._packing.begin(partial(self._pack, ring, position, arrays, waited_s))

    def _pack(self, ring: Ring, position: int, arrays: Arrays, waited_s: float) -> None:
        try:
            layout = ring.pack(position, arrays)
            # The clock is one that all processes of a machine share.
            times = {"waited_s": waited_s, "made_at": time.perf_counter()}
            self._connection.send({"event": "committed", "position": position, "layout": layout, **times})
        except BaseException as error:  # noqa: BLE001  the border of the process, in its other thread
            os._exit(send_exit_message(self._connection, error, "pack", position, is_limited=self._is_limited))

    def _begin_doing(self, doing: str, position: int | None = None) -> None:
        self._doing, self._position = doing, position
        self._connection.send({"event": "doing", "doing": doing, "position": position})


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
    end, (ring,) = enter_child(arguments)
    return Producer(ChildConnection(end, blocking=True), ring).run()


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    if exit_code != 0:
        # A task that failed may have left threads behind, and these must not keep the process alive.
        sys.stderr.flush()
        os._exit(exit_code)
