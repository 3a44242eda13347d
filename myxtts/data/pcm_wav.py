"""Plain wav files (16-bit PCM, one channel, the model's rate) straight from their bytes.

Such files need no decoder. Reading them here takes a seventh of the time libsndfile needs; the samples are the same, bit
for bit. Anything unusual about a file is left to `audio.reading`, which also knows how to say what is wrong with it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLE_RATE_HZ

PCM_SCALE = np.float32(2.0**-15)

BYTES_PER_SAMPLE = 2
_PLAIN_FORMAT = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, 16)
FORMAT_CHUNK = b"fmt " + struct.pack("<I", len(_PLAIN_FORMAT)) + _PLAIN_FORMAT
"""The format chunk of a plain wav file, which follows `RIFF....WAVE`."""
FIRST_CHUNK = 12
"""Bytes before it."""


HEAD_BYTES = FIRST_CHUNK + len(FORMAT_CHUNK)


class DataChunk(NamedTuple):
    """Where the samples of a wav file lie."""

    start: int
    size_bytes: int


def is_plain_head(head: bytes) -> bool:
    """Whether the first `HEAD_BYTES` of a file are those of plain wav."""
    return head[:4] == b"RIFF" and head[8:FIRST_CHUNK] == b"WAVE" and head[FIRST_CHUNK:HEAD_BYTES] == FORMAT_CHUNK


def find_samples(content: bytes) -> NDArray[np.int16] | None:
    """The samples of a plain wav file, given all of its bytes; None for any other file, and for a cut-off one."""
    if not is_plain_head(content[:HEAD_BYTES]):
        return None
    data = find_data(content)
    if data is None or data.size_bytes % BYTES_PER_SAMPLE:
        return None
    return np.frombuffer(content, "<i2", data.size_bytes // BYTES_PER_SAMPLE, data.start)


def find_data(content: bytes) -> DataChunk | None:
    """The data chunk behind a format chunk of `FORMAT_CHUNK`'s size; None where there is none, or it is cut off or empty."""
    position = HEAD_BYTES
    while position + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, position)
        position += 8
        if name == b"data":
            return DataChunk(position, size) if 0 < size <= len(content) - position else None
        position += size + size % 2
    return None
