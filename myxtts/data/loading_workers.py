"""Loads done by reader processes, which write the samples straight into shared memory.

Decoding in threads of one process gets slower with every thread, because they wait for each other; processes do not.
What is sent are names and places, never samples. A process that dies is replaced: what it was reading is read again, and
a clip that keeps killing processes has failed.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from myxtts.data.clip_loading import ClipFile, LoadFailure
from myxtts.data.drops import DropReason
from myxtts.data.loading import Load, LoadingEngine, Samples
from myxtts.data.workers import Crashed, Job, Task, WorkerPool
from myxtts.errors import MachineError

QUEUED_CLIPS = 32
"""Clips a process has been told of. Enough to keep it busy while this process does something else for a step's time."""
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
        descriptor = self._memory.descriptor
        task = Task("myxtts.data.clip_loading:make_loader", {"memory_fd": descriptor})
        try:
            self._pool = WorkerPool(
                task, workers, descriptors=[descriptor], queue=QUEUED_CLIPS, most_faults=2, most_kills=5
            )
        except BaseException:
            self._memory.close()
            raise

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        load = Load(files, samples)
        while not self._memory.has_room and self._cancelled:
            self._receive(wait=True)
        load.place = self._memory.acquire()
        self._receive(wait=False)
        self._pool.add([job for row in range(load.rows) for job in self._make_jobs(load, row)])
        return load

    def finish(self, load: Load) -> None:
        while load.pending:
            self._receive(wait=True)

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        load.change_file(row, file)
        # Before all others: somebody waits for it.
        self._pool.add(self._make_jobs(load, row), comes_first=True)

    def take(self, load: Load) -> Samples:
        return self._memory.hand_out(load.place, load.rows, load.samples)

    def cancel(self, load: Load) -> None:
        load.is_cancelled = True
        self._cancelled += 1
        # What processes were told of already, they will write: until then the slot is not free.
        for job in self._pool.withdraw(lambda job: job.owner[0] is load):
            load.pending.discard(job.owner[1])
        self._free_cancelled(load)

    def close(self) -> None:
        self._pool.close()
        self._memory.close()

    def _make_jobs(self, load: Load, row: int) -> list[Job]:
        """The job of loading a row; none for a row of zeros, which is made here."""
        file = load.files[row]
        if file is None:
            self._memory.view(load.place, load.rows, load.samples)[row] = 0.0
            return []
        first = self._memory.find_offset(load.place) + row * load.samples
        return [Job([[*file, first, first + load.samples]], owner=(load, row), cost=file.samples)]

    def _receive(self, wait: bool) -> None:
        for job, results in self._pool.receive(wait=wait):
            load, row = job.owner
            failure = None
            if isinstance(results, Crashed):
                detail = f"{job.deaths} reader processes died while they read it, the last of signal {results.signal}"
                failure = LoadFailure(DropReason.CORRUPT, detail)
            elif results[0]:
                failure = LoadFailure(DropReason(results[0][0]), results[0][1])
            load.note(row, failure)
            self._free_cancelled(load)

    def _free_cancelled(self, load: Load) -> None:
        if load.is_cancelled and not load.pending:
            self._cancelled -= 1
            self._memory.release(load.place)
