"""Loads done by reader processes, which write the samples straight into shared memory.

Decoding in threads of one process gets slower with every thread, because they wait for each other; processes do not.
What is sent are names and places, never samples. A process that dies is replaced: what it was reading is read again, and
a clip that keeps killing processes has failed.
"""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.clip_loading import ClipFile, LoadFailure
from myxtts.data.drops import DropReason
from myxtts.data.errors import WorkerError
from myxtts.data.loading import Load, LoadingEngine, Samples
from myxtts.data.workers import Task, WorkerProcess
from myxtts.errors import MachineError

MOST_LEASES = 2
"""Batches that may be handed out without a copy: the one in use, and one more while the next is being taken."""


class SlotMemory:
    """Slots of equal size. A batch is written to one, handed out from there, and the slot is used again afterwards.

    Args:
        slots: how many may be written to at a time.
        slot_samples: size of each, in samples of 4 bytes.
    """

    def __init__(self, slots: int, slot_samples: int):
        self._slot_bytes = -(-slot_samples * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        self._count = slots + MOST_LEASES
        self._touched = 0
        self._free: deque[int] = deque()
        self._leased: set[int] = set()
        self.descriptor = os.memfd_create("myxtts-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self._count * self._slot_bytes)
            self._memory = mmap.mmap(self.descriptor, self._count * self._slot_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    @property
    def has_room(self) -> bool:
        """Whether there is a slot to write to."""
        return bool(self._free) or self._touched < self._count

    def acquire(self) -> int:
        """A slot to write to."""
        if self._free:
            return self._free.popleft()
        slot = self._touched
        assert slot < self._count, "more slots are asked for than were agreed on"
        try:
            # Without this a page is sought when it is first written, and where there is none the writer dies of SIGBUS.
            os.posix_fallocate(self.descriptor, slot * self._slot_bytes, self._slot_bytes)
        except OSError as error:
            raise MachineError(
                f"Host memory for batch {slot + 1} of {self._count} that are read ahead, {self._slot_bytes >> 20} MB each, "
                f"cannot be had: {error.strerror}. Lower --buffer-size or --batch-size."
            ) from error
        self._touched += 1
        return slot

    def find_offset(self, slot: int) -> int:
        """The slot's first sample, counted from the beginning of the memory."""
        return slot * self._slot_bytes // 4

    def view(self, slot: int, rows: int, samples: int) -> NDArray[np.float32]:
        """The beginning of a slot as (rows, samples)."""
        return np.ndarray((rows, samples), np.float32, self._memory, slot * self._slot_bytes)

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def hand_out(self, slot: int, rows: int, samples: int) -> NDArray[np.float32]:
        """The beginning of a slot for somebody else to keep. The slot comes back by itself once nobody refers to it.

        A copy, and the slot is free at once, for a caller who holds on to several: the slots that are written to are
        never taken from the readers.
        """
        array = self.view(slot, rows, samples)
        if len(self._leased) >= MOST_LEASES:
            array = array.copy()
            self.release(slot)
            return array
        self._leased.add(slot)
        # Every view of the array, and every tensor that shares its memory, refers to the array.
        weakref.finalize(array, self._end_lease, slot).atexit = False
        return array

    def _end_lease(self, slot: int) -> None:
        # In whichever thread drops the last reference: both are single operations on built-in types.
        self._leased.discard(slot)
        self._free.append(slot)

    def close(self) -> None:
        """Give the memory back, as far as nobody refers to it; the rest goes when nobody does."""
        os.close(self.descriptor)
        del self._memory


QUEUED_CLIPS = 32
"""Clips a process has been told of. Enough to keep it busy while this process does something else for a step's time."""

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
_MOST_FAULTS_OF_A_CLIP = 2
_MOST_KILLS_OF_A_CLIP = 5
"""A process that dies of a fault died of its clip. One that was killed may have been in somebody's way."""
_MOST_DEATHS_IN_A_ROW = 20


@dataclass(eq=False)
class _Job:
    load: Load
    row: int
    file: ClipFile
    first_sample: int
    deaths: int = 0


class _Reader(WorkerProcess):
    """A reader process and the jobs it was given, oldest first."""

    def __init__(self, memory: SlotMemory):
        settings = {"memory_fd": memory.descriptor}
        super().__init__(Task("myxtts.data.clip_loading:make_loader", settings), [memory.descriptor])
        self.jobs: deque[_Job] = deque()
        self.queued_samples = 0
        self._unsent: list[list[Any]] = []

    def add_job(self, job: _Job) -> None:
        """Put a job behind the others; `send_jobs` tells the process."""
        self.jobs.append(job)
        self.queued_samples += job.file.samples
        # One list per clip, so that the oldest clip without an answer is the one that was being read.
        self._unsent.append([[*job.file, job.first_sample, job.first_sample + job.load.samples]])

    def send_jobs(self) -> None:
        if self._unsent:
            self.give(*self._unsent)
            self._unsent.clear()

    def pop_job(self) -> _Job:
        job = self.jobs.popleft()
        self.queued_samples -= job.file.samples
        return job


class WorkerEngine(LoadingEngine):
    """Loads in processes of its own.

    Args:
        workers: how many, at least 1.
        depth: loads that may be under way.
        slot_samples: the most that any load has, rows times samples.
    """

    def __init__(self, workers: int, depth: int, slot_samples: int):
        self._memory = SlotMemory(depth, slot_samples)
        self._cancelled = 0
        self._waiting: deque[_Job] = deque()
        self._selector = selectors.DefaultSelector()
        self._readers: list[_Reader] = []
        self._deaths_in_a_row = 0
        try:
            for _ in range(workers):
                self._start_reader()
        except BaseException:
            self.close()
            raise

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        load = Load(files, samples)
        while not self._memory.has_room and self._cancelled:
            self._receive(wait=True)
        load.place = self._memory.acquire()
        self._waiting.extend(job for row in range(load.rows) for job in self._make_jobs(load, row))
        self._receive(wait=False)
        self._feed()
        return load

    def finish(self, load: Load) -> None:
        while load.pending:
            self._receive(wait=True)
            self._feed()

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        load.change_file(row, file)
        # Before all others: somebody waits for it.
        self._waiting.extendleft(self._make_jobs(load, row))
        self._feed()

    def take(self, load: Load) -> Samples:
        return self._memory.hand_out(load.place, load.rows, load.samples)

    def cancel(self, load: Load) -> None:
        load.is_cancelled = True
        self._cancelled += 1
        # What processes were told of already, they will write: until then the slot is not free.
        self._free_cancelled(load)
        self._withdraw_cancelled()

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()
        self._readers.clear()
        self._selector.close()
        self._memory.close()

    def _make_jobs(self, load: Load, row: int) -> list[_Job]:
        """The job of loading a row; none for a row of zeros, which is made here."""
        file = load.files[row]
        if file is None:
            self._memory.view(load.place, load.rows, load.samples)[row] = 0.0
            return []
        return [_Job(load, row, file, self._memory.find_offset(load.place) + row * load.samples)]

    def _feed(self) -> None:
        """Share waiting jobs out: the next one to the process with the least to do."""
        while self._waiting:
            free = [reader for reader in self._readers if len(reader.jobs) < QUEUED_CLIPS]
            if not free:
                break
            min(free, key=lambda reader: reader.queued_samples).add_job(self._waiting.popleft())
        for reader in self._readers:
            reader.send_jobs()

    def _receive(self, wait: bool) -> None:
        for key, _ in self._selector.select(None if wait else 0):
            reader: _Reader = key.data
            for (result,) in reader.receive():
                self._deaths_in_a_row = 0
                failure = LoadFailure(DropReason(result[0]), result[1]) if result else None
                self._note(reader.pop_job(), failure)
            if reader.is_closed:
                self._reap(reader)

    def _note(self, job: _Job, failure: LoadFailure | None) -> None:
        job.load.note(job.row, failure)
        self._free_cancelled(job.load)

    def _free_cancelled(self, load: Load) -> None:
        if load.is_cancelled and not load.pending:
            self._cancelled -= 1
            self._memory.release(load.place)

    def _start_reader(self) -> None:
        reader = _Reader(self._memory)
        self._readers.append(reader)
        self._selector.register(reader.socket, selectors.EVENT_READ, reader)

    def _reap(self, reader: _Reader) -> None:
        """Take a dead process's jobs back, before all others, and start another process."""
        self._selector.unregister(reader.socket)
        self._readers.remove(reader)
        cause = reader.find_exit_signal()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _MOST_DEATHS_IN_A_ROW:
            raise WorkerError(
                f"{_MOST_DEATHS_IN_A_ROW} reader processes in a row died of signal {cause}, whatever they read. The machine "
                "may be out of memory, or a library is broken."
            )
        self._start_reader()
        if reader.jobs and reader.is_ready:
            self._blame(reader.jobs[0], cause)
        self._waiting.extendleft(job for job in reversed(reader.jobs) if job.row in job.load.pending)
        self._withdraw_cancelled()

    def _withdraw_cancelled(self) -> None:
        """Strike off waiting jobs that nobody wants any more."""
        unwanted = [job for job in self._waiting if job.load.is_cancelled]
        self._waiting = deque(job for job in self._waiting if not job.load.is_cancelled)
        for job in unwanted:
            self._note(job, None)

    def _blame(self, suspect: _Job, cause: int) -> None:
        suspect.deaths += 1
        if suspect.deaths >= (_MOST_FAULTS_OF_A_CLIP if cause in _FAULTS else _MOST_KILLS_OF_A_CLIP):
            detail = f"{suspect.deaths} reader processes died while they read it, the last of signal {cause}"
            self._note(suspect, LoadFailure(DropReason.CORRUPT, detail))
