"""The process that stands between a trainer and a tf.data service: asks, asks again, and fills rows of batches.

TensorFlow waits for a service without end, and cannot be interrupted while it does: when a worker dies, what it had in hand
never comes. So the waiting is done in threads, the only ones of this room, of a process that can be ended at any time.
What matters is kept by number: an answer that comes twice finds that nobody wants it any more.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.config.address import parse_address
from myxtts.data.float_wav import find_float_samples
from myxtts.data.pcm_wav import PCM_SCALE, find_samples
from myxtts.data.service.messages import Arrival, FileContents, Progress, Request, unpack_request
from myxtts.data.workers import Work
from myxtts.devices.environment import VISIBLE_DEVICES

MOST_PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
"""Before what is missing from an answer that has ended is asked for again."""


@dataclass(eq=False)
class _Segment:
    """Requests that were made together."""

    numbers: tuple[int, ...]
    patience_s: float
    due_s: float
    """When what it still lacks is asked for again."""


ReadFiles = Callable[[Mapping[int, Sequence[str]]], Iterator[FileContents]]


class ServiceClient:
    """Requests that are under way at a service.

    Args:
        memory: the samples of all batches.
        read_files: asks the service for the files of numbered requests.
        patience_s: silence after which what is missing is asked for again; doubled each time.
        failures: what a service may fail with.
    """

    def __init__(
        self,
        memory: NDArray[np.float32],
        read_files: ReadFiles,
        *,
        patience_s: float,
        failures: tuple[type[Exception], ...] = (),
    ):
        self._memory = memory
        self._read_files = read_files
        self._patience_s = patience_s
        self._failures = failures
        self._wanted: dict[int, Request] = {}
        self._arrivals: list[Arrival] = []
        self._segments: list[_Segment] = []
        self._threads = 0
        # Also held while samples are written: who has been told that a request is forgotten may use its rows.
        self._changed = threading.Condition()
        self._asked_again = 0
        self._last_failure = ""

    def ask(self, requests: Iterable[Request]) -> None:
        """Begin with requests."""
        with self._changed:
            new = {request.number: request for request in requests}
            self._wanted |= new
            self._start(tuple(new), self._patience_s)

    def forget(self, numbers: Iterable[int]) -> None:
        """Requests that nobody wants any more. Nothing is written for them from now on."""
        with self._changed:
            for number in numbers:
                self._wanted.pop(number, None)

    def take_progress(self, wait_s: float) -> Progress:
        """What has happened since the last call; waits for an arrival, but no longer than it is told to."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrivals, wait_s)
            self._ask_again()
            progress = Progress(self._arrivals, self._asked_again, self._threads, self._last_failure)
            self._arrivals, self._asked_again = [], 0
            return progress

    def _start(self, numbers: tuple[int, ...], patience_s: float) -> None:
        if numbers:
            segment = _Segment(numbers, patience_s, time.monotonic() + patience_s)
            self._segments.append(segment)
            self._threads += 1
            threading.Thread(target=self._run, args=[segment], daemon=True).start()

    def _run(self, segment: _Segment) -> None:
        with self._changed:
            wanted = self._list_wanted(segment)
            paths = {number: [file.path for file in self._wanted[number].files.values()] for number in wanted}
        # Whatever else goes wrong ends the thread, with words on standard error, and is asked for again like the rest.
        with contextlib.suppress(*self._failures):
            try:
                answers = self._read_files(paths) if paths else iter(())
                while self._list_wanted(segment) and (contents := next(answers, None)) is not None:
                    self._note(segment, contents)
            finally:
                self._end(segment, sys.exception())

    def _end(self, segment: _Segment, failure: BaseException | None) -> None:
        with self._changed:
            self._threads -= 1
            segment.due_s = min(segment.due_s, time.monotonic() + PAUSE_SECONDS)
            if failure is not None:
                self._last_failure = f"{type(failure).__name__}: {failure}"

    def _note(self, segment: _Segment, contents: FileContents) -> None:
        with self._changed:
            segment.due_s = time.monotonic() + segment.patience_s
            request = self._wanted.pop(contents.number, None)
            if request is not None:
                self._arrivals.append(self._write(request, contents))
                self._changed.notify_all()

    def _write(self, request: Request, contents: FileContents) -> Arrival:
        rows = list(request.files)
        loaded = [
            row
            for place, row in enumerate(rows)
            if place in contents.contents and self._write_row(request, row, contents.contents[place])
        ]
        unseen = [row for place, row in enumerate(rows) if place not in contents.contents]
        return Arrival(request.number, loaded, unseen, contents.machine)

    def _write_row(self, request: Request, row: int, content: bytes) -> bool:
        file = request.files[row]
        samples = find_served_samples(content)
        if samples is None or len(samples) != file.samples or len(content) != file.size_bytes:
            return False
        first = request.first_sample + row * request.row_samples
        self._memory[first : first + len(samples)] = samples
        self._memory[first + len(samples) : first + request.row_samples] = 0.0
        return True

    def _list_wanted(self, segment: _Segment) -> tuple[int, ...]:
        return tuple(number for number in segment.numbers if number in self._wanted)

    def _ask_again(self) -> None:
        """Ask again for what segments lack that have been silent for too long, or have ended."""
        now = time.monotonic()
        self._segments = [segment for segment in self._segments if self._list_wanted(segment)]
        for segment in [segment for segment in self._segments if now >= segment.due_s]:
            self._segments.remove(segment)
            missing = self._list_wanted(segment)
            self._asked_again += len(missing)
            self._start(missing, min(2 * segment.patience_s, MOST_PATIENCE_SECONDS))


def find_served_samples(content: bytes) -> NDArray[np.float32] | None:
    """The samples of a file that data workers may send; None for other formats."""
    integers = find_samples(content)
    return find_float_samples(content) if integers is None else integers * PCM_SCALE


def make_client(address: str, memory_fd: int, patience_s: float) -> Work:
    """The work of the process between a trainer and a service.

    Items are `["ask", requests]`, `["forget", numbers]` and `["take", seconds]`; the last one is answered with a `Progress`.
    """
    # Nothing here is for a GPU, and TensorFlow would take all of its memory.
    os.environ[VISIBLE_DEVICES] = ""
    # Threads that wait for the service would never let TensorFlow end in good order.
    atexit.register(os._exit, 0)
    # Not imported above: what is asked of this module elsewhere needs no TensorFlow. The runtime first, which makes it quiet.
    import myxtts.devices.runtime  # noqa: F401, I001
    import tensorflow as tf
    from myxtts.data.service.reading import read_through_service

    service = parse_address(address)
    assert service is not None
    client = ServiceClient(
        np.frombuffer(mmap.mmap(memory_fd, 0), np.float32),
        lambda paths: read_through_service(service, paths),
        patience_s=patience_s,
        failures=(tf.errors.OpError,),
    )

    def answer(item: Any) -> Any:
        match item:
            case ["ask", requests]:
                client.ask(map(unpack_request, requests))
            case ["forget", numbers]:
                client.forget(numbers)
            case ["take", wait_s]:
                return astuple(client.take_progress(wait_s))
        return None

    return answer
