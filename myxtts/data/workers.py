"""Worker processes that do items of work: `python -m myxtts.data.workers`.

A worker talks over a socket pair in lines of JSON; the socket's end is the news of the end on both sides. A worker that a
file crashes is replaced, and the file named.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from myxtts.data.errors import WorkerError
from myxtts.errors import MachineError, MyXTTSError, UserError
from myxtts.processes import ChildProcess, enter_child

Work = Callable[[Any], Any]
"""Does one item; takes and returns JSON values."""

CHUNK_ITEMS = 32
_CHUNKS_AHEAD = 2
_MOST_CRASHES_IN_A_ROW = 20
_STOP_SECONDS = 10.0
_ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A worker is one core's worth of work: numeric libraries must not start a thread per core in each."""


@dataclass(frozen=True)
class Task:
    """What workers do, in words that another process understands.

    Args:
        factory: `package.module:function`; called once per worker with the settings, returns a `Work`.
        settings: keyword arguments of the factory, JSON values only.
        identity: what results depend on apart from the item, such as a file's digest, if that is not the settings.
    """

    factory: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""

    def load(self) -> Work:
        """The work, ready to be done in this process."""
        module, _, name = self.factory.partition(":")
        work: Work = getattr(importlib.import_module(module), name)(**self.settings)
        return work


@dataclass(frozen=True)
class Crashed:
    """Stands for the result of an item that killed its worker."""

    signal: int


def count_workers() -> int:
    """One worker per core this process may use."""
    return len(os.sched_getaffinity(0))


def run_task(task: Task, items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Pairs of an item's position and its result, in the order in which they become ready.

    Args:
        items: JSON values.
        workers: number of processes; 0 does the work in this one.
    """
    if workers == 0:
        work = task.load()
        for position, item in enumerate(items):
            yield position, work(item)
        return
    pool = _Pool(task, items, min(workers, -(-len(items) // CHUNK_ITEMS)))
    try:
        yield from pool.run()
    finally:
        pool.close()


class _Pool:
    """Hands chunks of positions to workers and collects results."""

    def __init__(self, task: Task, items: Sequence[Any], workers: int):
        self._task = task
        self._items = items
        self._worker_count = workers
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._next = 0
        self._again: deque[list[int]] = deque()
        self._crashes_in_a_row = 0

    def run(self) -> Iterator[tuple[int, Any]]:
        for _ in range(self._worker_count):
            self._start_worker()
        while any(worker.chunks for worker in self._workers):
            for key, _ in self._selector.select():
                worker: _Worker = key.data
                if worker not in self._workers:
                    continue
                for results in worker.receive():
                    self._crashes_in_a_row = 0
                    yield from zip(worker.chunks.popleft(), results, strict=True)
                    self._feed(worker)
                if worker.is_closed:
                    yield from self._replace(worker)

    def close(self) -> None:
        """End all workers and wait for them."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._selector.close()

    def _start_worker(self) -> None:
        worker = _Worker(self._task)
        self._workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        for _ in range(_CHUNKS_AHEAD):
            self._feed(worker)

    def _feed(self, worker: _Worker) -> None:
        if self._again:
            positions = self._again.popleft()
        else:
            positions = list(range(self._next, min(self._next + CHUNK_ITEMS, len(self._items))))
            self._next += len(positions)
        if positions:
            worker.chunks.append(positions)
            worker.give([self._items[position] for position in positions])

    def _replace(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        """Take a dead worker's work back, and find out which item killed it."""
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        signal = worker.find_exit_signal()
        self._crashes_in_a_row += 1
        if self._crashes_in_a_row > _MOST_CRASHES_IN_A_ROW:
            raise WorkerError(
                f"{_MOST_CRASHES_IN_A_ROW} worker processes in a row died of signal {signal}, whatever they worked on "
                f"({self._task.factory}). The machine may be out of memory, or a library is broken."
            )
        if worker.is_ready:
            suspects = worker.chunks.popleft()
            if len(suspects) == 1:
                yield suspects[0], Crashed(signal)
            else:
                self._again.extend([position] for position in suspects)
        self._again.extend(worker.chunks)
        self._start_worker()


class WorkerProcess:
    """One process that does a task, item list by item list, and the socket that leads to it.

    Args:
        pass_fds: file descriptors that the task needs; they keep their numbers.
        is_one_core: whether numeric libraries get one core. A run that is measured has what any run has.
    """

    def __init__(self, task: Task, pass_fds: Sequence[int] = (), *, is_one_core: bool = True):
        self.is_closed = False
        self.is_ready = False
        """Whether it has begun with what it was given. One that died before that did not die of an item."""
        self._buffer = b""
        environment = {**os.environ, **_ONE_CORE} if is_one_core else None
        # A stream: what is given and answered may be longer than a message.
        self._child = ChildProcess(__name__, kind=socket.SOCK_STREAM, descriptors=pass_fds, environment=environment)
        self.socket = self._child.socket
        self._send({"factory": task.factory, "settings": dict(task.settings)})

    def give(self, *item_lists: list[Any]) -> None:
        """Queue work. Each list is answered by one list of results, in this order."""
        self._send(*item_lists)

    def _send(self, *messages: Any) -> None:
        try:
            self.socket.sendall(b"".join(json.dumps(message).encode("ascii") + b"\n" for message in messages))
        except (BrokenPipeError, ConnectionResetError):
            # Its death is read from the socket's end, where all deaths are handled.
            return

    def receive(self) -> list[list[Any]]:
        """The lists of results that have arrived; waits for at least a part of one. Sets `is_closed` when it is dead."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return []
        self._child.trim_output()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        replies = [json.loads(line) for line in lines]
        for notice in replies:
            if isinstance(notice, dict):
                self._heed(notice)
        return [reply for reply in replies if isinstance(reply, list)]

    def _heed(self, notice: Mapping[str, str]) -> None:
        match notice:
            case {"user_error": text}:
                raise UserError(text)
            case {"error": text}:
                raise MachineError(text)
        self.is_ready = True

    def read_report(self) -> str:
        """The end of what it has written; until it is stopped or its death is looked into."""
        return self._child.read_output()

    def write_stacks(self) -> None:
        """Makes the process add to its report where its threads are, if it still can."""
        self._child.write_stacks()

    def await_exit_code(self) -> int:
        """How a process ended whose socket has; negative for a signal."""
        return self._child.wait()

    def find_exit_signal(self) -> int:
        """Which signal killed the process. Raises `WorkerError` when it ended by itself, which is a fault of ours."""
        code, report = self.await_exit_code(), self.read_report()
        self.stop()
        if code >= 0:
            raise WorkerError(f"A worker process ended with exit code {code}:\n{report}")
        return -code

    def stop(self) -> None:
        """End the process, at the latest when it has done its present item, and wait for it."""
        self._child.close(_STOP_SECONDS)

    def kill(self) -> None:
        """End the process and all that it has started at once, whatever they do, and wait for it."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._child.kill()
        self.stop()


class _Worker(WorkerProcess):
    """A worker of a pool and the chunks it was given."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.chunks: deque[list[int]] = deque()


def serve(connection: socket.socket) -> None:
    """Do chunks of work until the other side closes the connection. This is the worker's whole life."""
    with connection.makefile("rwb") as stream:
        work: Work | None = None
        for line in stream:
            message = json.loads(line)
            try:
                reply: Any = {"ready": ""}
                if work is None:
                    work = Task(**message).load()
                else:
                    reply = [work(item) for item in message]
            except MyXTTSError as error:
                reply = {"user_error" if isinstance(error, UserError) else "error": str(error)}
            stream.write(json.dumps(reply).encode("ascii") + b"\n")
            stream.flush()


if __name__ == "__main__":
    connection, _ = enter_child(sys.argv[1:])
    with connection:
        serve(connection)
