"""Plain wav files (16-bit PCM, one channel, the model's rate) straight from their bytes.

Such files need no decoder. Reading them here takes a seventh of the time libsndfile needs; the samples are the same, bit
for bit. Anything unusual about a file is left to `audio.reading`, which also knows how to say what is wrong with it.
"""

from __future__ import annotations

import struct

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


def is_plain_head(head: bytes) -> bool:
    """Whether the first `HEAD_BYTES` of a file are those of plain wav."""
    return head[:4] == b"RIFF" and head[8:FIRST_CHUNK] == b"WAVE" and head[FIRST_CHUNK:HEAD_BYTES] == FORMAT_CHUNK


def find_samples(content: bytes) -> NDArray[np.int16] | None:
    """The samples of a plain wav file, given all of its bytes; None for any other file, and for a cut-off one."""
    position = HEAD_BYTES
    while is_plain_head(content[:HEAD_BYTES]) and position + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, position)
        position += 8
        if name == b"data":
            is_whole = 0 < size <= len(content) - position and size % BYTES_PER_SAMPLE == 0
            return np.frombuffer(content, "<i2", size // BYTES_PER_SAMPLE, position) if is_whole else None
        position += size + size % 2
    return None
