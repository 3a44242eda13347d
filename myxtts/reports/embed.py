"""Pictures and sounds inside a page, so that it is one file that can be sent to anybody."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import soundfile
from markupsafe import Markup
from numpy.typing import NDArray

from myxtts.audio.plain_mel import SILENT_LOG_POWER, compute_log_mel
from myxtts.audio.reading import read_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.files import read_bytes
from myxtts.monitoring.mel_picture import paint_mel

LOUD_LOG_POWER = 2.0
"""Drawn brightest: the loudest vowels of a clip at full scale. The same in all pictures, so that they can be compared."""
MOST_SOUND_BYTES = 64 << 20
"""Of a sound in a page: a quarter of an hour of wav, more than a browser takes gladly."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BIT_RGB = (8, 2, 0, 0, 0)
_SOUND = Markup(
    '<img alt="Spectrogram of {label}" src="data:image/png;base64,{picture}">'
    '<audio controls preload="metadata" aria-label="{label}" src="data:audio/wav;base64,{wav}"></audio>'
)


def embed_file(path: Path, label: str) -> Markup:
    """The spectrogram of a wav file and a player with the file inside it; needs no script."""
    return _embed(read_clip(path), read_bytes(path, MOST_SOUND_BYTES), label)


def embed_clip(path: Path, label: str) -> Markup:
    """The same of a recording of any format, as the wav file that a run reads from it."""
    samples, file = read_clip(path), io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    return _embed(samples, file.getvalue(), label)


def encode_png(picture_HW3: NDArray[np.uint8]) -> bytes:
    """An RGB picture as a PNG file."""
    height, width, _ = picture_HW3.shape
    # Each line begins with the number of its filter: 0 is none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture_HW3.reshape(height, -1)], axis=1)
    header = struct.pack(">II5B", width, height, *_EIGHT_BIT_RGB)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return _PNG_SIGNATURE + b"".join(_make_chunk(name, content) for name, content in chunks)


def _embed(samples: NDArray[np.float32], wav: bytes, label: str) -> Markup:
    picture = paint_mel(compute_log_mel(samples), scale=1, lowest=SILENT_LOG_POWER, highest=LOUD_LOG_POWER)
    codes = {"picture": encode_png(picture), "wav": wav}
    return _SOUND.format(label=label, **{name: base64.b64encode(code).decode() for name, code in codes.items()})


def _make_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
