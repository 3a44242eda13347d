"""A ring of slots in shared memory: the producer packs arrays into a slot, the trainer reads them where they lie.

Nothing in the memory itself says whether a slot is whole. That is said by a message that is sent after the slot is
written, with the slot's layout: a producer killed while it writes has sent none. Where an array lies follows from the
names, types and shapes alone.

`SlotTable` knows which slot holds which batch, and how far each has come.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.errors import MachineError, UserError
from myxtts.pipeline.process_memory import format_bytes

Arrays = Mapping[str, NDArray[Any]]

ALIGNMENT = 64
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
_MOST_OF_FREE = 0.8
"""Of the free memory. The rest is for what the run has yet to allocate."""


class RingMemoryError(MachineError):
    """The shared memory of a ring cannot be had."""


class SlotTooSmallError(UserError):
    """A batch does not fit into a slot."""


class SlotContentError(UserError):
    """A batch holds something a slot cannot carry."""


class ArraySpec(NamedTuple):
    """Name, type and shape of one array; in JSON a list."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


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
            raise RingMemoryError(
                f"{slots} slots of {format_bytes(slot_bytes)} cannot be mapped into this process: {error}"
            ) from error
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(memory, np.uint8)

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Ring:
        """A new ring, for reading. Raises `RingMemoryError` where the host has no room for it."""
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

    def pack(self, slot: int, arrays: Arrays) -> Layout:
        """Copies arrays into a slot. Raises `SlotTooSmallError` with their sizes when they do not fit."""
        layout = describe_arrays(arrays)
        size_bytes = sum(_align(spec.size_bytes) for spec in layout)
        if size_bytes > self.slot_bytes:
            raise SlotTooSmallError(
                f"A batch must fit into a slot of {format_bytes(self.slot_bytes)}, but needs {format_bytes(size_bytes)}: "
                f"{_list_sizes(layout)}. Lower --batch-size, or drop the longest clips."
            )
        for name, view in self.read(slot, layout).items():
            np.copyto(view, arrays[name], casting="no")
        return layout

    def read(self, slot: int, layout: Layout) -> dict[str, NDArray[Any]]:
        """A slot's arrays, as views that show the slot's memory: to be copied (`transfer.place_batch`) before it is released."""
        assert self._bytes is not None, "the ring is closed"
        assert 0 <= slot < self.slots, slot
        own = self._bytes[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]
        return {
            spec.name: own[offset : offset + spec.size_bytes].view(spec.dtype).reshape(spec.shape)
            for spec, offset in place_arrays(layout)
        }

    def close(self) -> None:
        """Gives the memory back; where views of slots are still held, as soon as the last of them is gone."""
        if self._bytes is not None:
            # A mapping cannot be unmapped under a view; it goes with the last reference instead.
            self._bytes = None
            os.close(self._descriptor)


def describe_arrays(arrays: Arrays) -> Layout:
    """The specs of arrays. Raises `SlotContentError` for what another process could not read back."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES or not array.dtype.isnative:
            kind = array.dtype.str if isinstance(array, np.ndarray) else type(array).__name__
            raise SlotContentError(f"{name!r} is {kind}; a slot carries NumPy arrays of {', '.join(sorted(DTYPES))}.")
    return [ArraySpec(name, array.dtype.name, array.shape) for name, array in arrays.items()]


def place_arrays(layout: Layout) -> Iterator[tuple[ArraySpec, int]]:
    """Each spec with the offset in bytes at which its array begins."""
    offset = 0
    for spec in layout:
        yield spec, offset
        offset += _align(spec.size_bytes)


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _list_sizes(layout: Layout) -> str:
    return ", ".join(
        f"{spec.name} {spec.dtype}{list(spec.shape)} {format_bytes(spec.size_bytes)}"
        for spec in sorted(layout, key=lambda spec: -spec.size_bytes)
    )


def reserve_shared_memory(size_bytes: int) -> int:
    """A file descriptor of memory that is really there and can neither shrink nor grow. The caller closes it.

    It has no name, so nothing is left behind when all who share it are gone.
    """
    free_bytes = read_free_memory_bytes()
    # Checked beforehand: the kernel does not refuse a reservation that is too large, it kills processes to fulfil it.
    if size_bytes > free_bytes * _MOST_OF_FREE:
        raise RingMemoryError(
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
        raise RingMemoryError(
            f"{format_bytes(size_bytes)} of shared host memory cannot be reserved: {os.strerror(error.errno or 0)}. "
            "Lower --batch-size, or raise the limits of this process (`ulimit -a`, or those of its container)."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class Grant:
    """A slot given to the producer for the batch at a position."""

    slot: int
    position: int


class SlotTable:
    """Slots on their way around: free, granted, committed, taken, free.

    Batches are taken in the order of their positions, each exactly once, whatever happens to the producers that make them.

    Args:
        end_position: the first position that is not wanted; None for a stream without end.
    """

    def __init__(self, slots: int, first_position: int, end_position: int | None):
        self._free = deque(range(slots))
        self._granted: dict[int, int] = {}
        self._committed: dict[int, tuple[int, Layout]] = {}
        self._taken: deque[int] = deque()
        self._next_grant = first_position
        self._next_take = first_position
        self._end = end_position

    @property
    def next_position(self) -> int:
        """The position of the next batch to be taken."""
        return self._next_take

    def grant_free(self) -> list[Grant]:
        """Grants for all free slots, as far as there are positions left."""
        first = self._next_grant
        while self._free and not self._is_end(self._next_grant):
            self._granted[self._next_grant] = self._free.popleft()
            self._next_grant += 1
        return [Grant(self._granted[position], position) for position in range(first, self._next_grant)]

    def list_granted(self) -> list[Grant]:
        """The grants not yet answered by a commit, in the order of positions: what a new producer has to do."""
        return [Grant(slot, position) for position, slot in sorted(self._granted.items())]

    def commit(self, slot: int, position: int, layout: Layout) -> None:
        """Notes that a slot is written."""
        assert self._granted.get(position) == slot, f"slot {slot} was not granted for batch {position}"
        self._committed[position] = (self._granted.pop(position), layout)

    def find_ready(self) -> tuple[Grant, Layout] | None:
        """The next batch to be taken, if it is committed."""
        if self._next_take not in self._committed:
            return None
        slot, layout = self._committed[self._next_take]
        return Grant(slot, self._next_take), layout

    def take(self) -> None:
        """Takes the batch that `find_ready` found."""
        slot, _ = self._committed.pop(self._next_take)
        self._taken.append(slot)
        self._next_take += 1

    def release(self) -> None:
        """Frees the slot that was taken first."""
        assert self._taken, "more slots released than taken"
        self._free.append(self._taken.popleft())

    def is_waiting(self) -> bool:
        """Whether the next batch is granted, so that waiting for it makes sense."""
        return self._next_take in self._granted

    def has_work_left(self) -> bool:
        """Whether there is anything a producer still has to make."""
        return bool(self._granted) or not self._is_end(self._next_grant)

    def is_at_end(self) -> bool:
        """Whether everything was taken."""
        return self._is_end(self._next_take)

    def _is_end(self, position: int) -> bool:
        return self._end is not None and position >= self._end


def time_ring(batch_bytes: int, rounds: int) -> tuple[float, float]:
    """Median seconds to pack a batch of so many bytes into a slot, and to read and copy it out."""
    batch = {"values": np.random.default_rng(0).integers(0, 256, batch_bytes, dtype=np.uint8)}
    reader = Ring.create(3, 2 * batch_bytes)
    writer = Ring.attach(os.dup(reader.fileno()), reader.slots, reader.slot_bytes)
    try:
        layout = writer.pack(0, batch)
        return (
            _time_median(lambda: writer.pack(0, batch), rounds),
            _time_median(lambda: [np.array(view) for view in reader.read(0, layout).values()], rounds),
        )
    finally:
        reader.close()
        writer.close()


def _time_median(action: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
