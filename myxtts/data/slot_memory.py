"""Memory for batches that reader processes write and this process reads: anonymous, so nothing can be left behind."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

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
