"""Records kept in memory, up to a limit."""

from __future__ import annotations

RECORD_OVERHEAD_BYTES = 128
"""What a record takes beyond its bytes: its row in the table, with room to grow, and its part of a block."""

_PLACE_BITS = 32


class MemoryStore:
    """Blocks of records, first come, until the limit is reached; nothing is ever evicted.

    Every clip is visited once an epoch, so a cache that evicts the least recently used one when it is full evicts just
    what is needed next: it would never hit. What came first and stays gives a hit rate equal to the share that fits.
    """

    def __init__(self, limit_bytes: int):
        self._blocks: list[bytes] = []
        self.limit_bytes = limit_bytes
        self.size_bytes = 0

    def has_room(self, payload_bytes: int, records: int) -> bool:
        """Whether that many more bytes and records stay below the limit."""
        return self.size_bytes + payload_bytes + records * RECORD_OVERHEAD_BYTES <= self.limit_bytes

    def append(self, payloads: bytes, records: int) -> int:
        """The place at which the block starts. Call only when there is room."""
        assert len(payloads) < 1 << _PLACE_BITS, len(payloads)
        self._blocks.append(payloads)
        self.size_bytes += len(payloads) + records * RECORD_OVERHEAD_BYTES
        return (len(self._blocks) - 1) << _PLACE_BITS

    def read(self, offset: int, size_bytes: int) -> bytes:
        """The bytes at a place."""
        start = offset & ((1 << _PLACE_BITS) - 1)
        return self._blocks[offset >> _PLACE_BITS][start : start + size_bytes]
