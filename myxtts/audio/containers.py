"""What the bytes of a sound file say about themselves, where libsndfile would keep quiet.

libsndfile shortens a cut-off wav without a word, ends an Ogg stream at its first flipped bit, and guesses the length of an
MP3 that has no index. Each would put half a recording under its full text.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from io import BytesIO, FileIO
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from myxtts.units import SAMPLE_RATE_HZ

HEAD_BYTES = 16

PLAIN_SAMPLE_BYTES = 2
PLAIN_SCALE = np.float32(2.0**-15)
PLAIN_HEAD = struct.pack(
    "<12s4sIHHIIHH", b"RIFF....WAVE", b"fmt ", 16, 1, 1, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * PLAIN_SAMPLE_BYTES, 2, 16
)
"""How a plain wav file begins: 16-bit PCM, one channel, the model's rate. The four dots are the file's size."""
PLAIN_SIZE = slice(4, 8)
"""Where the dots are."""

_FOREIGN_FORMATS = {
    (0, b"\x1aE\xdf\xa3"): "WebM or Matroska",
    (0, b"0&\xb2u"): "Windows Media",
    (0, b"#!AMR"): "AMR",
    (4, b"ftyp"): "MPEG-4 (AAC or ALAC)",
}
_MPEG_IN_RIFF = 0x55

# Recorders that write to a pipe cannot know the length: they claim the largest one of 32 bits, or nearly that.
_UNKNOWN_LENGTH = 0x7FFFF000

_OGG_LAST_PAGE_FLAG = 0x04
_OGG_HEADER_BYTES = 27
_OGG_MAX_PAGE_BYTES = _OGG_HEADER_BYTES + 255 + 255 * 255

_ID3_HEADER_BYTES = 10
_KBITS_MPEG1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_MPEG2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_MPEG1 = 3


@dataclass(frozen=True, slots=True)
class OggPage:
    """What the header of an Ogg page says."""

    ends_stream: bool
    """The stream's last page, and all of it."""
    granule: int
    """Samples up to the end of this page, on the codec's clock (the sample rate; always 48 kHz for Opus)."""


def name_foreign_format(head: bytes) -> str | None:
    """The name of a well-known sound format that libsndfile does not read, or None."""
    for (offset, magic), name in _FOREIGN_FORMATS.items():
        if head[offset:].startswith(magic):
            return name
    return None


def may_hold_mpeg(file: FileIO, head: bytes) -> bool:
    """Whether libsndfile may hand this file to its MP3 decoder."""
    if head.startswith((b"fLaC", b"OggS", b"FORM")):
        return False
    if not head.startswith((b"RIFF", b"RF64", b"RIFX")):
        return True
    chunk = find_chunk(file, head, b"fmt ")
    if chunk is None:
        return True
    file.seek(chunk[0])
    return int.from_bytes(file.read(2), "little") == _MPEG_IN_RIFF


def is_plain(content: bytes) -> bool:
    """Whether a file that begins so is plain wav: what nearly every corpus is made of."""
    begin, end = PLAIN_SIZE.start, PLAIN_SIZE.stop
    return content.startswith(PLAIN_HEAD[:begin]) and content.startswith(PLAIN_HEAD[end:], end)


def find_plain_samples(content: bytes) -> NDArray[np.int16] | None:
    """The samples of a plain wav file, given all of its bytes; None for any other file, and for a cut-off one."""
    chunk = find_chunk(BytesIO(content), content, b"data") if is_plain(content) else None
    if chunk is None:
        return None
    start, size = chunk
    is_whole = 0 < size <= len(content) - start and size % PLAIN_SAMPLE_BYTES == 0
    return np.frombuffer(content, "<i2", size // PLAIN_SAMPLE_BYTES, start) if is_whole else None


def find_chunk(file: BinaryIO | FileIO, head: bytes, wanted: bytes) -> tuple[int, int] | None:
    """Where the content of a RIFF or AIFF chunk begins and how long it claims to be, in bytes; None when there is none."""
    byteorder = ">" if head.startswith((b"FORM", b"RIFX")) else "<"
    position = 12
    while True:
        file.seek(position)
        header = file.read(8)
        if len(header) < 8:
            return None
        name, size = header[:4], struct.unpack(f"{byteorder}I", header[4:])[0]
        if name == wanted:
            return position + 8, size
        if not all(32 <= byte < 127 for byte in name):
            # Not a chunk: damage. Zeros would be walked eight bytes at a time.
            return None
        position += 8 + size + size % 2


def count_missing_bytes(file: FileIO, head: bytes) -> int:
    """How many bytes of sound a wav or AIFF file promises beyond its end; 0 when whole, unknown, or another format."""
    if head.startswith((b"RIFF", b"RIFX")):
        chunk = find_chunk(file, head, b"data")
    elif head.startswith(b"FORM"):
        chunk = find_chunk(file, head, b"SSND")
    else:
        return 0
    if chunk is None or chunk[1] >= _UNKNOWN_LENGTH:
        return 0
    return max(0, chunk[0] + chunk[1] - os.fstat(file.fileno()).st_size)


def find_last_ogg_page(file: FileIO, head: bytes) -> OggPage | None:
    """The last page of an Ogg file, or None when the file is no Ogg file."""
    if not head.startswith(b"OggS"):
        return None
    file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _OGG_MAX_PAGE_BYTES))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    if len(page) < _OGG_HEADER_BYTES:
        return OggPage(ends_stream=False, granule=0)
    flags, granule = struct.unpack_from("<Bq", page, 5)
    body = _OGG_HEADER_BYTES + page[_OGG_HEADER_BYTES - 1]
    is_whole = len(page) >= body + sum(page[_OGG_HEADER_BYTES:body])
    return OggPage(ends_stream=is_whole and bool(flags & _OGG_LAST_PAGE_FLAG), granule=granule)


def count_mpeg_samples(file: FileIO) -> int | None:
    """The samples per channel of an MP3 without an index, by walking its frames; None when it has an index.

    libsndfile takes the length of such a file from its first frame's bit rate, which is wrong when the rate varies.
    """
    position = _skip_id3(file)
    samples = 0
    while True:
        file.seek(position)
        header = file.read(4)
        frame = _measure_mpeg_frame(header)
        if frame is None:
            return samples
        frame_bytes, frame_samples = frame
        if samples == 0:
            content = file.read(frame_bytes - 4)
            if any(tag in content for tag in (b"Xing", b"Info", b"VBRI")):
                return None
        position += frame_bytes
        samples += frame_samples


def _skip_id3(file: FileIO) -> int:
    file.seek(0)
    header = file.read(_ID3_HEADER_BYTES)
    if not header.startswith(b"ID3") or len(header) < _ID3_HEADER_BYTES:
        return 0
    # Seven bits per byte.
    size = 0
    for byte in header[6:]:
        size = size << 7 | byte & 0x7F
    return _ID3_HEADER_BYTES + size


def _measure_mpeg_frame(header: bytes) -> tuple[int, int] | None:
    """Bytes and samples of the layer III frame that starts with these four bytes, or None when none does."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, rate_index, kbit_index = header[1] >> 3 & 3, header[2] >> 2 & 3, header[2] >> 4
    if version not in _RATES_HZ or rate_index == 3 or kbit_index in (0, 15):
        return None
    kbits = (_KBITS_MPEG1 if version == _MPEG1 else _KBITS_MPEG2)[kbit_index]
    samples = 1152 if version == _MPEG1 else 576
    return samples * kbits * 125 // _RATES_HZ[version][rate_index] + (header[2] >> 1 & 1), samples
