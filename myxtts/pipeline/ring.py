"""A ring of slots in shared memory: the producer packs arrays into a slot, the trainer reads them where they lie.

Nothing in the memory itself says whether a slot is whole. That is said by a message that is sent after the slot is
written, with the slot's layout and checksum: a producer killed while it writes has sent none.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from myxtts.pipeline import slot_layout
from myxtts.pipeline.checksum import compute_checksum
from myxtts.pipeline.errors import MalformedMessageError, RingMemoryError, SlotDamagedError, SlotTooSmallError
from myxtts.pipeline.shared_memory import reserve_shared_memory
from myxtts.pipeline.slot_layout import Arrays, ArraySpec, Layout
from myxtts.pipeline.units import format_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class SlotContent:
    """What a slot was filled with; together with the slot's bytes this is the batch."""

    layout: Layout
    checksum: int


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

    def pack(self, slot: int, arrays: Arrays) -> SlotContent:
        """Copies arrays into a slot. Raises `SlotTooSmallError` with their sizes when they do not fit."""
        layout = slot_layout.describe_arrays(arrays)
        size_bytes = slot_layout.measure_layout(layout)
        if size_bytes > self.slot_bytes:
            raise SlotTooSmallError(
                f"A batch must fit into a slot of {format_bytes(self.slot_bytes)}, but needs {format_bytes(size_bytes)}: "
                f"{_list_sizes(layout)}. Lower --batch-size, or drop the longest clips."
            )
        for name, view in self._make_views(slot, layout).items():
            np.copyto(view, arrays[name], casting="no")
        return SlotContent(layout, self._compute_checksum(slot, size_bytes))

    def read(self, slot: int, content: SlotContent) -> dict[str, NDArray[Any]]:
        """A slot's arrays, as views that show the slot's memory: copy them (`copy_arrays`) before the slot is released.

        Raises `MalformedMessageError` for a layout that does not fit, `SlotDamagedError` for a wrong checksum.
        """
        size_bytes = slot_layout.measure_layout(content.layout)
        if not 0 <= slot < self.slots or size_bytes > self.slot_bytes:
            raise MalformedMessageError(
                f"{format_bytes(size_bytes)} in slot {slot} do not lie within {self.slots} slots of {format_bytes(self.slot_bytes)}."
            )
        if self._compute_checksum(slot, size_bytes) != content.checksum:
            raise SlotDamagedError(
                f"The content of slot {slot} ({format_bytes(size_bytes)}) is not what was put there."
            )
        return self._make_views(slot, content.layout)

    def close(self) -> None:
        """Gives the memory back; where views of slots are still held, as soon as the last of them is gone."""
        if self._bytes is not None:
            # A mapping cannot be unmapped under a view; it goes with the last reference instead.
            self._bytes = None
            os.close(self._descriptor)

    def _make_views(self, slot: int, layout: Layout) -> dict[str, NDArray[Any]]:
        return {
            spec.name: _view(self._get_slot(slot), spec, offset) for spec, offset in slot_layout.place_arrays(layout)
        }

    def _compute_checksum(self, slot: int, size_bytes: int) -> int:
        return compute_checksum(self._get_slot(slot)[:size_bytes])

    def _get_slot(self, slot: int) -> NDArray[np.uint8]:
        assert self._bytes is not None, "the ring is closed"
        assert 0 <= slot < self.slots, slot
        return self._bytes[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]


def copy_arrays(arrays: Arrays, copy: Callable[[NDArray[Any]], T]) -> dict[str, T]:
    """Copies of a slot's arrays that stay valid when the slot is released.

    Args:
        copy: must really copy. `np.array` and `tf.constant` do; `np.asarray`, `tf.convert_to_tensor` of a tensor,
            `tf.expand_dims`, `tf.squeeze`, dlpack, `numpy_function` and `from_generator` may show the slot's own memory,
            which the next batch overwrites.
    """
    return {name: copy(array) for name, array in arrays.items()}


def _view(slot: NDArray[np.uint8], spec: ArraySpec, offset: int) -> NDArray[Any]:
    return slot[offset : offset + spec.size_bytes].view(spec.dtype).reshape(spec.shape)


def _list_sizes(layout: Layout) -> str:
    return ", ".join(
        f"{spec.name} {spec.dtype}{list(spec.shape)} {format_bytes(spec.size_bytes)}"
        for spec in sorted(layout, key=lambda spec: -spec.size_bytes)
    )


def time_ring(batch_bytes: int, rounds: int) -> tuple[float, float]:
    """Median seconds to pack a batch of so many bytes into a slot, and to read and copy it out."""
    batch = {"values": np.random.default_rng(0).integers(0, 256, batch_bytes, dtype=np.uint8)}
    reader = Ring.create(3, 2 * batch_bytes)
    writer = Ring.attach(os.dup(reader.fileno()), reader.slots, reader.slot_bytes)
    try:
        content = writer.pack(0, batch)
        return (
            _time_median(lambda: writer.pack(0, batch), rounds),
            _time_median(lambda: copy_arrays(reader.read(0, content), np.array), rounds),
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
