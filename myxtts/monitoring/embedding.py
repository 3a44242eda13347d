"""Pictures and sounds inside a page, so that it is one file that can be sent to anybody."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from html import escape
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from myxtts.audio.plain_mel import SILENT_LOG_POWER, compute_log_mel
from myxtts.audio.reading import read_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.files import read_bytes
from myxtts.monitoring.mel_picture import paint_mel

LOUD_LOG_POWER = 2.0
"""Drawn brightest: the loudest vowels of a clip at full scale. The same in all pictures, so that they can be compared."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BIT_RGB = (8, 2, 0, 0, 0)

MOST_SOUND_BYTES = 64 << 20
"""Of a sound in a page: a quarter of an hour of wav, more than a browser takes gladly."""

SOUND_STYLE = """
figure.sound { margin: 0 0 1rem; background: var(--card); padding: .6rem .9rem; min-width: 0; }
figure.sound figcaption { display: flex; justify-content: space-between; gap: 1rem; margin-bottom: .4rem; }
figure.sound figcaption span { color: var(--soft); font-size: .85rem; font-variant-numeric: tabular-nums; }
figure.sound img { width: 100%; height: 5.5rem; display: block; } figure.sound audio { width: 100%; height: 2.2rem; margin-top: .4rem; }
blockquote { margin: .5rem 0 1rem; padding-inline-start: .9rem; border-inline-start: 4px solid var(--line); font-size: 1.05rem; }
"""


def embed_file(path: Path, label: str) -> str:
    """The spectrogram of a wav file and a player with the file inside it; needs no script."""
    return _draw_mel(read_clip(path), label) + _draw_player(read_bytes(path, MOST_SOUND_BYTES), label)


def embed_clip(samples: NDArray[np.float32], label: str) -> str:
    """The same of a clip at 22.05 kHz."""
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    return _draw_mel(samples, label) + _draw_player(file.getvalue(), label)


def _draw_mel(samples: NDArray[np.float32], label: str) -> str:
    picture = paint_mel(compute_log_mel(samples), scale=1, lowest=SILENT_LOG_POWER, highest=LOUD_LOG_POWER)
    code = base64.b64encode(encode_png(picture)).decode()
    return f'<img alt="Spectrogram of {escape(label)}" src="data:image/png;base64,{code}">'


def _draw_player(wav: bytes, label: str) -> str:
    code = base64.b64encode(wav).decode()
    return (
        f'<audio controls preload="metadata" aria-label="{escape(label)}" src="data:audio/wav;base64,{code}"></audio>'
    )


def encode_png(picture_HW3: NDArray[np.uint8]) -> bytes:
    """An RGB picture as a PNG file."""
    height, width, _ = picture_HW3.shape
    # Each line begins with the number of its filter: 0 is none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture_HW3.reshape(height, -1)], axis=1)
    header = struct.pack(">II5B", width, height, *_EIGHT_BIT_RGB)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return _PNG_SIGNATURE + b"".join(_make_chunk(name, content) for name, content in chunks)


def _make_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
