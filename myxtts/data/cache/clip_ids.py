"""Which recording a feature belongs to: 128 bits per clip."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

ClipIds = NDArray[np.uint64]
"""Two words per clip, in rows. The ids of some clips by number are `ids[numbers]`."""


def identify_files(
    paths: Iterable[bytes | bytearray], size_bytes: NDArray[np.int64], mtime_ns: NDArray[np.int64]
) -> ClipIds:
    """Ids that change when a file is replaced or renamed, and stay when the whole corpus moves.

    Two corpora may hold files of equal name, size and time (archives often set one time for all): with these ids each
    corpus needs a cache directory of its own.

    Args:
        paths: relative to the corpus, so that it may move.
        size_bytes: of each file.
        mtime_ns: each file's time of last change.
    """
    stamps = np.stack([size_bytes, mtime_ns], axis=1).astype("<i8").tobytes()
    contents = (path + stamps[16 * row : 16 * row + 16] for row, path in enumerate(paths))
    blob = b"".join(hashlib.blake2b(content, digest_size=16, person=b"file").digest() for content in contents)
    ids = np.frombuffer(blob, dtype="<u8").reshape(-1, 2)
    assert len(ids) == len(size_bytes) == len(mtime_ns), (len(ids), len(size_bytes), len(mtime_ns))
    return ids
