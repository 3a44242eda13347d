"""Wav files made by hand: usual ones and odd ones."""

from __future__ import annotations

import struct

import numpy as np

SAMPLES = np.arange(-3000, 3000, dtype="<i2") * 10


def make_chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(content) if size is None else size) + content + bytes(len(content) % 2)


def make_wav(
    *chunks: bytes, tag: int = 1, channels: int = 1, rate_hz: int = 22050, bits: int = 16, more_format: bytes = b""
) -> bytes:
    """A wav file of a format chunk and these."""
    frame = channels * bits // 8
    format = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * frame, frame, bits) + more_format
    content = b"WAVE" + make_chunk(b"fmt ", format) + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(content)) + content


DATA = make_chunk(b"data", SAMPLES.tobytes())
INFO = make_chunk(b"LIST", b"INFOISFT\x0e\x00\x00\x00Lavf59.27.100\x00")

PLAIN = {
    "plain": make_wav(DATA),
    "with a remark in front, as ffmpeg writes": make_wav(INFO, DATA),
    "with an odd remark": make_wav(make_chunk(b"LIST", b"odd"), DATA),
    "with three remarks": make_wav(INFO, INFO, INFO, DATA),
    "with a remark behind": make_wav(DATA, INFO),
    "with data in a remark": make_wav(make_chunk(b"LIST", b"INFO" + make_chunk(b"ICMT", DATA[:8] + bytes(16))), DATA),
    "one sample": make_wav(make_chunk(b"data", b"\x01\x80")),
}
"""Files that are read straight from their bytes."""

OTHER = {
    "44.1 kHz": make_wav(DATA, rate_hz=44100),
    "stereo": make_wav(DATA, channels=2),
    "8 bits": make_wav(DATA, bits=8),
    "24 bits": make_wav(DATA, bits=24),
    "mu-law": make_wav(DATA, tag=7, bits=8),
    "a longer format chunk": make_wav(DATA, more_format=b"\0\0"),
    "cut off": make_wav(DATA)[:-100],
    "half a sample": make_wav(make_chunk(b"data", SAMPLES.tobytes()[:-1])),
    "no samples": make_wav(make_chunk(b"data", b"")),
    "no data": make_wav(INFO),
    "data of unknown length": make_wav(make_chunk(b"data", SAMPLES.tobytes(), size=0xFFFFFFFF)),
    "a remark of 3 GB": make_wav(make_chunk(b"LIST", bytes(4), size=3 << 30), DATA),
    "big-endian": b"RIFX" + make_wav(DATA)[4:],
    "not wave": b"RIFF\x10\x00\x00\x00AVI " + make_wav(DATA)[12:],
    "twelve bytes": make_wav(DATA)[:12],
    "nothing": b"",
}
"""Files that are left to the decoder."""
