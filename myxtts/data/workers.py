"""Worker processes that do items of work: `python -m myxtts.data.workers`.

A worker talks over a socket pair in lines of JSON; the socket's end is the news of the end on both sides. A worker that a
file crashes is replaced, and the file named."""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from myxtts.errors import MachineError, MyXTTSError, ReadingError, UserError
from myxtts.processes import ChildProcess, enter_child

Work = Callable[[Any], Any]
"""Does one item; takes and returns JSON values."""

CHUNK_ITEMS = 32
_CHUNKS_AHEAD = 2
_MOST_DEATHS_IN_A_ROW = 20
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
_STOP_SECONDS = 10.0
_ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A worker is one core's worth of work: numeric libraries must not start a thread per core in each."""


@dataclass(frozen=True)
class WorkerTask:
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


def run_task(task: WorkerTask, items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
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
    waiting: list[Sequence[int]] = [
        range(n, min(n + CHUNK_ITEMS, len(items))) for n in range(0, len(items), CHUNK_ITEMS)
    ]
    waiting.reverse()
    pool = WorkerPool(task, min(workers, len(waiting)))
    try:
        under_way = 0
        while waiting or under_way:
            while waiting and under_way < _CHUNKS_AHEAD * workers:
                positions = waiting.pop()
                pool.add([WorkerJob([items[position] for position in positions], owner=positions)])
                under_way += 1
            for job, results in pool.receive():
                under_way -= 1
                if isinstance(results, Crashed) and len(job.owner) > 1:
                    # Which of them it was is found out one by one.
                    waiting += [[position] for position in job.owner]
                else:
                    yield from zip(job.owner, [results] if isinstance(results, Crashed) else results, strict=True)
    finally:
        pool.close()


@dataclass(eq=False)
class WorkerJob:
    """Items that one worker does together."""

    items: list[Any]
    owner: Any
    """Whoever asked for them, as the caller knows it."""
    cost: int = 1
    """In whatever unit: the next job goes to the worker that has the least to do."""
    deaths: int = 0
    """Workers that died of it."""


class WorkerPool:
    """Workers that do jobs. One that dies is replaced; a job that keeps killing workers has `Crashed`.

    Args:
        descriptors: files that the task needs.
        queue: jobs that a worker is told of: enough to keep it busy while this process does something else.
        most_faults: a worker that dies of a fault died of its job: so many are enough to say so.
        most_kills: one that was killed may have been in somebody's way.
    """

    def __init__(
        self,
        task: WorkerTask,
        workers: int,
        *,
        descriptors: Sequence[int] = (),
        queue: int = _CHUNKS_AHEAD,
        most_faults: int = 1,
        most_kills: int = 1,
    ):
        self._task = task
        self._descriptors = descriptors
        self._queue = queue
        self._most_faults, self._most_kills = most_faults, most_kills
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._waiting: deque[WorkerJob] = deque()
        self._deaths_in_a_row = 0
        try:
            for _ in range(workers):
                self._start_worker()
        except BaseException:
            self.close()
            raise

    def add(self, jobs: Sequence[WorkerJob], *, comes_first: bool = False) -> None:
        """Queue jobs behind the others, or before them."""
        if comes_first:
            self._waiting.extendleft(reversed(jobs))
        else:
            self._waiting.extend(jobs)
        self._feed()

    def withdraw(self, is_unwanted: Callable[[WorkerJob], bool]) -> list[WorkerJob]:
        """Strike off jobs that no worker was told of yet."""
        unwanted = [job for job in self._waiting if is_unwanted(job)]
        self._waiting = deque(job for job in self._waiting if not is_unwanted(job))
        return unwanted

    def receive(self, *, wait: bool = True) -> list[tuple[WorkerJob, Any]]:
        """Jobs that were done, each with the list of its results or `Crashed`. There may be none yet."""
        done: list[tuple[WorkerJob, Any]] = []
        for key, _ in self._selector.select(None if wait else 0):
            worker: _Worker = key.data
            for results in worker.receive():
                self._deaths_in_a_row = 0
                done.append((worker.pop_job(), results))
            if worker.is_closed:
                done += self._replace(worker)
        self._feed()
        return done

    def close(self) -> None:
        """End all workers and wait for them."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._selector.close()

    def _start_worker(self) -> None:
        worker = _Worker(self._task, self._descriptors)
        self._workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)

    def _feed(self) -> None:
        while self._waiting:
            free = [worker for worker in self._workers if len(worker.jobs) < self._queue]
            if not free:
                break
            min(free, key=lambda worker: worker.cost).add_job(self._waiting.popleft())
        for worker in self._workers:
            worker.send_jobs()

    def _replace(self, worker: _Worker) -> list[tuple[WorkerJob, Any]]:
        """Start another worker, which gets the dead one's jobs; not the one it died of, where that is known to kill."""
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        cause = worker.find_exit_signal()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _MOST_DEATHS_IN_A_ROW:
            raise ReadingError(
                f"{_MOST_DEATHS_IN_A_ROW} worker processes in a row died of signal {cause}, whatever they worked on "
                f"({self._task.factory}). The machine may be out of memory, or a library is broken."
            )
        self._start_worker()
        crashed: list[tuple[WorkerJob, Any]] = []
        if worker.is_ready and worker.jobs:
            # They are done in order, so the oldest one without an answer was under way.
            suspect = worker.jobs[0]
            suspect.deaths += 1
            if suspect.deaths >= (self._most_faults if cause in _FAULTS else self._most_kills):
                crashed.append((worker.jobs.popleft(), Crashed(cause)))
        self._waiting.extendleft(reversed(worker.jobs))
        return crashed


class WorkerProcess:
    """One process that does a task, item list by item list, and the socket that leads to it.

    Args:
        pass_fds: file descriptors that the task needs; they keep their numbers.
        is_one_core: whether numeric libraries get one core. A run that is measured has what any run has.
    """

    def __init__(self, task: WorkerTask, pass_fds: Sequence[int] = (), *, is_one_core: bool = True):
        self.is_closed = False
        self.is_ready = False
        """Whether it has begun with what it was given. One that died before that did not die of an item."""
        self._buffer = b""
        environment = {**os.environ, **_ONE_CORE} if is_one_core else None
        # A stream: what is given and answered may be longer than a message.
        self._child = ChildProcess(__name__, kind=socket.SOCK_STREAM, descriptors=pass_fds, environment=environment)
        self.socket = self._child.socket
        self.give({"factory": task.factory, "settings": dict(task.settings)})

    def give(self, *item_lists: Any) -> None:
        """Queue work. Each list is answered by one list of results, in this order."""
        try:
            self.socket.sendall(b"".join(json.dumps(items).encode("ascii") + b"\n" for items in item_lists))
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
        """Which signal killed the process. Raises `ReadingError` when it ended by itself, which is a fault of ours."""
        code, report = self.await_exit_code(), self.read_report()
        self.stop()
        if code >= 0:
            raise ReadingError(f"A worker process ended with exit code {code}:\n{report}")
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
    """A worker of a pool and the jobs it was given, oldest first."""

    def __init__(self, task: WorkerTask, descriptors: Sequence[int]):
        super().__init__(task, descriptors)
        self.jobs: deque[WorkerJob] = deque()
        self.cost = 0
        self._unsent: list[list[Any]] = []

    def add_job(self, job: WorkerJob) -> None:
        """Put a job behind the others; `send_jobs` tells the process."""
        self.jobs.append(job)
        self.cost += job.cost
        self._unsent.append(job.items)

    def send_jobs(self) -> None:
        if self._unsent:
            self.give(*self._unsent)
            self._unsent.clear()

    def pop_job(self) -> WorkerJob:
        job = self.jobs.popleft()
        self.cost -= job.cost
        return job


def serve(connection: socket.socket) -> None:
    """Do chunks of work until the other side closes the connection. This is the worker's whole life."""
    with connection.makefile("rwb") as stream:
        work: Work | None = None
        for line in stream:
            message = json.loads(line)
            try:
                reply: Any = {"ready": ""}
                if work is None:
                    work = WorkerTask(**message).load()
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
