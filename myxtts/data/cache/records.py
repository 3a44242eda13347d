"""What a record is: the bytes of an array, and an entry of fixed size that says where they are and what they mean.

Bytes go to a data file and entries to an index file, so that opening reads entries only. An entry carries a check
value over itself and the crc32 of its bytes: neither a torn nor a changed record can be taken for a sound one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.cache.clip_ids import ClipIds
from myxtts.hashing import hash_words

MAX_RANK = 3

ENTRY = np.dtype(
    [
        ("id", "<u8", (2,)),
        ("offset", "<i8"),
        ("size_bytes", "<u4"),
        ("crc32", "<u4"),
        ("kind", "<u2"),
        ("rank", "<u2"),
        ("shape", "<u4", (MAX_RANK,)),
        ("check", "<u8"),
    ]
)
_WORDS = ENTRY.itemsize // 8

Entries = NDArray[np.void]
"""One-dimensional, of `ENTRY`."""

# Numbers in files on disk: never give one a new meaning.
_KINDS: dict[int, np.dtype[Any]] = {1: np.dtype("<i2"), 2: np.dtype("<i4"), 3: np.dtype("<f2"), 4: np.dtype("<f4")}
_KIND_OF = {dtype: kind for kind, dtype in _KINDS.items()}


def encode_records(ids: ClipIds, arrays: Sequence[NDArray[Any]]) -> tuple[bytes, Entries]:
    """The bytes of all arrays, and entries whose offsets count from the start of these bytes."""
    for array in arrays:
        assert array.dtype in _KIND_OF, array.dtype
        assert array.ndim <= MAX_RANK, array.shape
    payloads = [array.tobytes() for array in arrays]
    entries = np.zeros(len(arrays), ENTRY)
    entries["id"] = ids
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    entries["size_bytes"] = sizes
    entries["offset"] = np.cumsum(sizes) - sizes
    entries["crc32"] = [zlib.crc32(payload) for payload in payloads]
    entries["kind"] = [_KIND_OF[array.dtype] for array in arrays]
    entries["rank"] = [array.ndim for array in arrays]
    entries["shape"] = [[*array.shape, *[0] * (MAX_RANK - array.ndim)] for array in arrays]
    return b"".join(payloads), entries


def is_sound(payload: bytes, size_bytes: int, crc32: int) -> bool:
    """Whether these are the bytes that were written."""
    return len(payload) == size_bytes and zlib.crc32(payload) == crc32


def decode_record(payload: bytes, kind: int, shape: Sequence[int]) -> NDArray[Any]:
    """The array, read-only. The bytes must be sound."""
    return np.ndarray(shape, _KINDS[kind], buffer=payload)


def move_entries(entries: Entries, distance_bytes: int) -> Entries:
    """Entries for the same records further on in a file."""
    moved = entries.copy()
    moved["offset"] += distance_bytes
    return moved


def seal_entries(entries: Entries) -> bytes:
    """The entries as they stand in an index file."""
    sealed = entries.copy()
    sealed["check"] = _compute_check(entries)
    return sealed.tobytes()


def unseal_entries(content: bytes, data_bytes: int) -> tuple[Entries, int]:
    """The sound entries of an index file, and the number of damaged ones.

    Args:
        content: the file from the start of an entry on; a torn entry at its end is not looked at.
        data_bytes: size of the data file. An entry that points outside it is damaged.
    """
    count = len(content) // ENTRY.itemsize
    entries = np.frombuffer(content, ENTRY, count)
    is_sound = _compute_check(entries) == entries["check"]
    is_sound &= (entries["offset"] >= 0) & (entries["offset"] + entries["size_bytes"] <= data_bytes)
    sound = entries if is_sound.all() else entries[is_sound]
    return sound, count - len(sound)


def _compute_check(entries: Entries) -> NDArray[np.uint64]:
    words = np.ascontiguousarray(entries).view("<u8").reshape(-1, _WORDS)
    # Copied by column: strided words make the hash several times slower.
    columns = np.ascontiguousarray(words[:, :-1].T)
    return hash_words(*columns) if len(words) else np.zeros(0, np.uint64)
