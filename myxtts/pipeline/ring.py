"""A ring of slots in shared memory: the producer packs arrays into a slot, the trainer reads them where they lie.

Nothing in the memory itself says whether a slot is whole, but a message that is sent after it is written, with its layout: a
producer killed while it writes has sent none. A batch has the slot of its position, modulo their number.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import statistics
import sys
import timeit
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.devices.machine import read_free_memory_bytes
from myxtts.errors import MachineError, UserError
from myxtts.units import format_bytes

Arrays = Mapping[str, NDArray[Any]]

ALIGNMENT = 64
_MOST_OF_FREE = 0.8
"""Of the free memory. The rest is for what the run has yet to allocate."""


class ArraySpec(NamedTuple):
    """Name, type and shape of one array; in JSON a list."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {format_bytes(self.size_bytes)}"


Layout = Sequence[ArraySpec]
"""What a slot holds, in its order."""


class Ring:
    """Slots of equal size in shared memory.

    The side that creates it can only read it, so no mistake there can spoil a batch; the side that attaches to it writes.
    """

    def __init__(self, descriptor: int, slots: int, slot_bytes: int, *, writable: bool):
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._descriptor = descriptor
        try:
            memory = mmap.mmap(
                descriptor,
                slots * slot_bytes,
                # The pages are reserved already; mapping them now spares the first batches a page fault for each.
                flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0),
            )
        except (OSError, ValueError) as error:
            raise MachineError(
                f"{slots} slots of {format_bytes(slot_bytes)} cannot be mapped into this process: {error}"
            ) from error
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(memory, np.uint8)

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Ring:
        """A new ring, for reading. Raises `MachineError` where the host has no room for it."""
        assert slots >= 1, slots
        assert slot_bytes >= 1, slot_bytes
        slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = reserve_shared_memory(slots * slot_bytes)
        try:
            return cls(descriptor, slots, slot_bytes, writable=False)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, descriptor: int, slots: int, slot_bytes: int) -> Ring:
        """A ring that another process created, for writing. Takes over the descriptor."""
        return cls(descriptor, slots, slot_bytes, writable=True)

    def fileno(self) -> int:
        return self._descriptor

    def pack(self, position: int, arrays: Arrays) -> Layout:
        """Copies the arrays of the batch at a position into its slot. Raises `UserError` with their sizes when they do not fit."""
        layout = [ArraySpec(name, array.dtype.name, array.shape) for name, array in arrays.items()]
        size_bytes = sum(_align(spec.size_bytes) for spec in layout)
        if size_bytes > self.slot_bytes:
            by_size = sorted(layout, key=lambda spec: -spec.size_bytes)
            raise UserError(
                f"A batch must fit into a slot of {format_bytes(self.slot_bytes)}, but needs {format_bytes(size_bytes)}: "
                f"{', '.join(map(str, by_size))}. Lower --batch-size, or drop the longest clips."
            )
        for name, view in self.read(position, layout).items():
            np.copyto(view, arrays[name], casting="no")
        return layout

    def read(self, position: int, layout: Layout) -> dict[str, NDArray[Any]]:
        """The arrays of the batch at a position, as views that show the slot's memory: to be copied (`batches.place_batch`) before it is released."""
        assert self._bytes is not None, "the ring is closed"
        arrays, offset = {}, position % self.slots * self.slot_bytes
        for spec in layout:
            arrays[spec.name] = self._bytes[offset : offset + spec.size_bytes].view(spec.dtype).reshape(spec.shape)
            offset += _align(spec.size_bytes)
        return arrays

    def close(self) -> None:
        """Gives the memory back; where views of slots are still held, as soon as the last of them is gone."""
        if self._bytes is not None:
            # A mapping cannot be unmapped under a view; it goes with the last reference instead.
            self._bytes = None
            os.close(self._descriptor)


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def reserve_shared_memory(size_bytes: int) -> int:
    """A file descriptor of memory that is really there and can neither shrink nor grow. The caller closes it.

    It has no name, so nothing is left behind when all who share it are gone.
    """
    free_bytes = read_free_memory_bytes()
    # Checked beforehand: the kernel does not refuse a reservation that is too large, it kills processes to fulfil it.
    if size_bytes > free_bytes * _MOST_OF_FREE:
        raise MachineError(
            f"{format_bytes(size_bytes)} of shared host memory are needed, but only {format_bytes(free_bytes)} are free, of "
            f"which at most {_MOST_OF_FREE:.0%} are taken. Lower --batch-size, or free memory."
        )
    descriptor = os.memfd_create("myxtts-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Without this a page is sought when it is first written, and where there is none the writer dies of SIGBUS.
        os.posix_fallocate(descriptor, 0, size_bytes)
        # A child gone wild could otherwise cut the memory off, and the trainer would die of SIGBUS while reading it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(descriptor)
        raise MachineError(
            f"{format_bytes(size_bytes)} of shared host memory cannot be reserved: {os.strerror(error.errno or 0)}. "
            "Lower --batch-size, or raise the limits of this process (`ulimit -a`, or those of its container)."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class SlotTable:
    """Positions of batches on their way around: granted to a producer, committed by it, taken, released.

    Batches are taken in the order of their positions, each exactly once, whatever happens to the producers that make them.

    Args:
        end: the first position that is not wanted; None for a stream without end.
    """

    def __init__(self, slots: int, first: int, end: int | None):
        self._slots = slots
        self._end = sys.maxsize if end is None else end
        self._committed: dict[int, Layout] = {}
        self._released = first
        """The first position whose slot is not free again."""
        self.next_position = first
        """Of the next batch to be taken."""

    def list_granted(self) -> list[int]:
        """The positions whose slots a producer may write and has not, in order."""
        return [position for position in range(self.next_position, self._grant_end) if position not in self._committed]

    def commit(self, position: int, layout: Layout) -> None:
        assert position in self.list_granted(), f"batch {position} was not granted"
        self._committed[position] = layout

    def take(self) -> tuple[int, Layout] | None:
        """Position and layout of the next batch, if it is committed; it counts as taken."""
        position = self.next_position
        if position not in self._committed:
            return None
        self.next_position += 1
        return position, self._committed.pop(position)

    def release(self) -> list[int]:
        """Frees the slot that was taken first. Gives the positions that are granted by that."""
        assert self._released < self.next_position, "more slots released than taken"
        before = self._grant_end
        self._released += 1
        return list(range(before, self._grant_end))

    def has_work_left(self) -> bool:
        return bool(self.list_granted()) or self._grant_end < self._end

    def is_at_end(self) -> bool:
        return self.next_position >= self._end

    @property
    def _grant_end(self) -> int:
        return min(self._released + self._slots, self._end)


def time_ring(batch_bytes: int, rounds: int) -> tuple[float, float]:
    """Median seconds to pack a batch of so many bytes into a slot, and to read and copy it out."""
    batch = {"values": np.random.default_rng(0).integers(0, 256, batch_bytes, dtype=np.uint8)}
    reader = Ring.create(3, 2 * batch_bytes)
    writer = Ring.attach(os.dup(reader.fileno()), reader.slots, reader.slot_bytes)
    try:
        layout = writer.pack(0, batch)
        works = (lambda: writer.pack(0, batch), lambda: [np.array(view) for view in reader.read(0, layout).values()])
        pack_s, read_s = (statistics.median(timeit.repeat(work, number=1, repeat=rounds)) for work in works)
        return pack_s, read_s
    finally:
        reader.close()
        writer.close()
