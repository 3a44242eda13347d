"""Processes that do items of work, such as reading clips: `python -m myxtts.data.task_processes`.

Each talks over a socket pair in lines of JSON; the socket's end is the news of the end on both sides. A process that a
file crashes is replaced, and the file named."""

from __future__ import annotations

import importlib
import json
import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import psutil

from myxtts.errors import MachineError, MyXTTSError, ReadingError, UserError
from myxtts.processes import ChildProcess, enter_child

Work = Callable[[Any], Any]
"""Does one item; takes and returns JSON values."""

QUEUED_JOBS = 32
"""That a process is told of: enough to keep it busy while this process does something else for a step's time."""
CHUNK_ITEMS = 32
"""That are one message where nobody waits for a single one: messages cost as much as small items."""
_MOST_DEATHS_IN_A_ROW = 20
_STOP_SECONDS = 10.0
_ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A process is one core's worth of work: numeric libraries must not start a thread per core in each."""


@dataclass(frozen=True)
class ProcessTask:
    """What processes do, in words that they understand.

    Args:
        factory: `package.module:function`; called once per process with the settings, returns a `Work`.
        settings: keyword arguments of the factory, JSON values only.
    """

    factory: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Work:
        module, _, name = self.factory.partition(":")
        work: Work = getattr(importlib.import_module(module), name)(**self.settings)
        return work


@dataclass(frozen=True)
class Crashed:
    """Stands for the result of an item that killed its process."""

    signal: int


def count_cores() -> int:
    return len(os.sched_getaffinity(0))


def run_task(task: ProcessTask, items: Iterable[Any], processes: int) -> Iterator[tuple[int, Any]]:
    """Pairs of an item's position and its result, or `Crashed`, in the order in which they become ready.

    Args:
        items: JSON values, taken as they are needed.
        processes: how many; 0 does the work in this one.
    """
    if processes == 0:
        yield from enumerate(map(task.load(), items))
        return
    numbered = enumerate(items)
    with closing(TaskPool(task, processes)) as pool:
        under_way = 0
        while True:
            while under_way < 2 * processes and (chunk := dict(islice(numbered, CHUNK_ITEMS))):
                pool.add([TaskJob(list(chunk.values()), owner=chunk)])
                under_way += 1
            if under_way == 0:
                return
            for job, results in pool.receive():
                under_way -= 1
                if not isinstance(results, Crashed):
                    yield from zip(job.owner, results, strict=True)
                elif len(job.items) == 1:
                    yield from ((position, results) for position in job.owner)
                else:
                    # Which of them it was is found out one by one.
                    singles = [TaskJob([item], owner=[position]) for position, item in job.owner.items()]
                    pool.add(singles, comes_first=True)
                    under_way += len(singles)


@dataclass(eq=False)
class TaskJob:
    """Items for some process, which are one message."""

    items: list[Any]
    owner: Any
    """Whoever asked for them, as the caller knows it."""
    cost: int = 1
    """In whatever unit: the next job goes to the process that has the least to do."""
    deaths: int = 0
    """Processes that died of it."""


class TaskPool:
    """Processes that do jobs. One that dies is replaced; a job that keeps killing them has `Crashed`.

    Args:
        descriptors: files that the task needs.
        most_deaths: so many processes that die at a job are enough to say that they die of it.
    """

    def __init__(self, task: ProcessTask, processes: int, *, descriptors: Sequence[int] = (), most_deaths: int = 1):
        self._task = task
        self._descriptors = descriptors
        self._most_deaths = most_deaths
        self._selector = selectors.DefaultSelector()
        self._processes: list[TaskProcess] = []
        self._waiting: deque[TaskJob] = deque()
        self._deaths_in_a_row = 0
        try:
            for _ in range(processes):
                self._start_process()
        except BaseException:
            self.close()
            raise

    def add(self, jobs: Sequence[TaskJob], *, comes_first: bool = False) -> None:
        """Queue jobs behind the others, or before them."""
        if comes_first:
            self._waiting.extendleft(reversed(jobs))
        else:
            self._waiting.extend(jobs)
        self._feed()

    def withdraw(self, is_unwanted: Callable[[TaskJob], bool]) -> list[TaskJob]:
        """Strike off jobs that no process was told of yet."""
        unwanted = [job for job in self._waiting if is_unwanted(job)]
        self._waiting = deque(job for job in self._waiting if not is_unwanted(job))
        return unwanted

    def receive(self, *, wait: bool = True) -> list[tuple[TaskJob, Any]]:
        """Jobs that were done, each with the list of its results or `Crashed`. There may be none yet."""
        done: list[tuple[TaskJob, Any]] = []
        for key, _ in self._selector.select(None if wait else 0):
            process: TaskProcess = key.data
            for results in process.receive():
                self._deaths_in_a_row = 0
                job = process.jobs.popleft()
                process.cost -= job.cost
                done.append((job, results))
            if process.is_closed:
                done += self._replace(process)
        self._feed()
        return done

    def close(self) -> None:
        """End all processes and wait for them."""
        for process in self._processes:
            process.stop()
        self._processes.clear()
        self._selector.close()

    def _start_process(self) -> None:
        process = TaskProcess(self._task, self._descriptors)
        self._processes.append(process)
        self._selector.register(process.socket, selectors.EVENT_READ, process)

    def _feed(self) -> None:
        told: dict[TaskProcess, list[list[Any]]] = {}
        free = [each for each in self._processes if len(each.jobs) < QUEUED_JOBS]
        while self._waiting and free:
            process, job = min(free, key=lambda each: each.cost), self._waiting.popleft()
            process.jobs.append(job)
            process.cost += job.cost
            told.setdefault(process, []).append(job.items)
            if len(process.jobs) == QUEUED_JOBS:
                free.remove(process)
        for process, item_lists in told.items():
            process.give(*item_lists)

    def _replace(self, process: TaskProcess) -> list[tuple[TaskJob, Any]]:
        """Start another process, which gets the dead one's jobs; not the one it died of, where that is known to kill."""
        self._selector.unregister(process.socket)
        self._processes.remove(process)
        cause = process.find_exit_signal()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _MOST_DEATHS_IN_A_ROW:
            raise ReadingError(
                f"{_MOST_DEATHS_IN_A_ROW} worker processes in a row died of signal {cause}, whatever they worked on "
                f"({self._task.factory}). The machine may be out of memory, or a library is broken."
            )
        self._start_process()
        crashed: list[tuple[TaskJob, Any]] = []
        if process.is_ready and process.jobs:
            # They are done in order, so the oldest one without an answer was under way.
            suspect = process.jobs[0]
            suspect.deaths += 1
            if suspect.deaths >= self._most_deaths:
                crashed.append((process.jobs.popleft(), Crashed(cause)))
        self._waiting.extendleft(reversed(process.jobs))
        return crashed


class TaskProcess:
    """One process that does a task, item list by item list, and the socket that leads to it.

    Args:
        pass_fds: file descriptors that the task needs; they keep their numbers.
        is_one_core: whether numeric libraries get one core. A run that is measured has what any run has.
    """

    def __init__(self, task: ProcessTask, pass_fds: Sequence[int] = (), *, is_one_core: bool = True):
        self.is_closed = False
        self.is_ready = False
        """Whether it has begun with what it was given. One that died before that did not die of an item."""
        self.jobs: deque[TaskJob] = deque()
        """What a pool has told it of, oldest first."""
        self.cost = 0
        """Of these jobs together."""
        self._buffer = b""
        environment = {**os.environ, **_ONE_CORE} if is_one_core else None
        # A stream: what is given and answered may be longer than a message.
        self.child = ChildProcess(__name__, kind=socket.SOCK_STREAM, descriptors=pass_fds, environment=environment)
        self.socket = self.child.socket
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
        self.child.trim_output()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        replies: list[list[Any]] = []
        for line in lines:
            match json.loads(line):
                case {"user_error": text}:
                    raise UserError(text)
                case {"error": text}:
                    raise MachineError(text)
                case {"ready": _}:
                    self.is_ready = True
                case results:
                    replies.append(results)
        return replies

    def find_exit_signal(self) -> int:
        """Which signal killed the process. Raises `ReadingError` when it ended by itself, which is a fault of ours."""
        code, report = self.child.wait(), self.child.read_output()
        self.stop()
        if code >= 0:
            raise ReadingError(f"A worker process ended with exit code {code}:\n{report}")
        return -code

    def stop(self) -> None:
        """End the process, at the latest when it has done its present item, and wait for it."""
        self.child.close(_STOP_SECONDS)

    def kill(self) -> None:
        """End the process and all that it has started at once, whatever they do, and wait for it."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.child.kill()
        self.stop()


def serve(connection: socket.socket) -> None:
    """Do lists of items until the other side closes the connection. This is the process's whole life."""
    with connection.makefile("rwb") as stream:
        work: Work | None = None
        for line in stream:
            message = json.loads(line)
            try:
                reply: Any = {"ready": ""}
                if work is None:
                    work = ProcessTask(**message).load()
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
