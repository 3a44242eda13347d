"""Wav files of 32-bit floating-point numbers, one channel, the model's rate: what prepared corpora are made of.

They hold the samples as every reader of ours gives them, bit for bit, so nothing has to be decoded or resampled again.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.pcm_wav import FIRST_CHUNK, HEAD_BYTES, find_data

FLOAT_BYTES = 4
_FORMAT = struct.pack(
    "<4sIHHIIHH", b"fmt ", 16, 3, 1, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * FLOAT_BYTES, FLOAT_BYTES, 8 * FLOAT_BYTES
)


def find_float_samples(content: bytes) -> NDArray[np.float32] | None:
    """The samples of such a file, given all of its bytes; None for any other, and for one whose numbers cannot be sound."""
    if content[:4] != b"RIFF" or content[8:FIRST_CHUNK] != b"WAVE" or content[FIRST_CHUNK:HEAD_BYTES] != _FORMAT:
        return None
    data = find_data(content)
    if data is None or data.size_bytes % FLOAT_BYTES:
        return None
    samples = np.frombuffer(content, "<f4", data.size_bytes // FLOAT_BYTES, data.start)
    # Also false for what is not a number. What is louder is left to the decoder, which knows what to say about it.
    return samples if np.abs(samples).max() <= 1.0 else None


def write_float_wav(path: Path, samples: NDArray[np.float32]) -> None:
    """Write samples to a file, in one step."""
    data = samples.astype("<f4", copy=False).tobytes()
    head = b"RIFF" + struct.pack("<I", HEAD_BYTES + len(data)) + b"WAVE" + _FORMAT
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(head + struct.pack("<4sI", b"data", len(data)) + data)
    partial.replace(path)
