"""A recording from its file: header, samples, and why not. Every clip is decoded here, except plain wav in tf.data's graph.

Some bytes are looked at beforehand, where libsndfile would keep quiet: it shortens a cut-off wav without a word, and ends an Ogg
stream at its first flipped bit. Each would put half a recording under its full text."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray

from myxtts.audio.resampling import resample_clip, stream_resampled
from myxtts.devices.native_stderr import drop_lines
from myxtts.errors import CONVERT, COPY, REPLACE, ClipError, DropReason
from myxtts.files import FileError, MissingFileError, open_file
from myxtts.units import SAMPLE_RATE_HZ

PLAIN_SAMPLE_BYTES = 2
PLAIN_SCALE = np.float32(2.0**-15)
PLAIN_FORMAT = struct.pack("<4s4sIHHIIHH", b"WAVE", b"fmt ", 16, 1, 1, SAMPLE_RATE_HZ, 2 * SAMPLE_RATE_HZ, 2, 16)
"""Of a plain wav file, behind its size: 16-bit PCM, one channel, the model's rate."""

HEAD_BYTES = 24
_FOREIGN_FORMATS = {
    (0, b"\x1aE\xdf\xa3"): "WebM or Matroska",
    (0, b"0&\xb2u"): "Windows Media",
    (0, b"#!AMR"): "AMR",
    (4, b"ftyp"): "MPEG-4 (AAC or ALAC)",
}

# Recorders that write to a pipe cannot know the length: they claim the largest one of 32 bits, or nearly that.
_UNKNOWN_LENGTH = 0x7FFFF000

_OGG_LAST_PAGE_FLAG = 0x04
_OGG_HEADER_BYTES = 27
_OGG_MAX_PAGE_BYTES = _OGG_HEADER_BYTES + 255 + 255 * 255


OggPage = tuple[bool, int]
"""Of the last page: whether it is the stream's end, and whole; and samples up to its end, on the codec's clock (the sample rate;
always 48 kHz for Opus)."""


def may_hold_mpeg(head: bytes) -> bool:
    """Whether libsndfile may hand a file that begins so to its MP3 decoder."""
    is_other_wav = head.startswith((b"RIFF", b"RF64")) and head[12:16] == b"fmt " and head[20:22] != b"\x55\0"
    return not is_other_wav and not head.startswith((b"fLaC", b"OggS", b"FORM"))


def _is_plain(content: bytes) -> bool:
    """Whether a file that begins so is plain wav: what nearly every corpus is made of."""
    return content.startswith(b"RIFF") and content.startswith(PLAIN_FORMAT, 8)


def find_plain_samples(content: bytes) -> NDArray[np.int16] | None:
    """The samples of a plain wav file, given all of its bytes; None for any other file, and for a cut-off one."""
    chunk = find_chunk(BytesIO(content), content, b"data") if _is_plain(content) else None
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
    """How many bytes of sound a wav or AIFF file promises beyond its end, which libsndfile says nothing about; 0 when whole,
    unknown, or another format."""
    wanted = {b"RIFF": b"data", b"RIFX": b"data", b"FORM": b"SSND"}.get(head[:4])
    chunk = find_chunk(file, head, wanted) if wanted else None
    if chunk is None or chunk[1] >= _UNKNOWN_LENGTH:
        return 0
    return max(0, sum(chunk) - os.fstat(file.fileno()).st_size)


def find_last_ogg_page(file: FileIO, head: bytes) -> OggPage | None:
    """The last page of an Ogg file, or None when the file is no Ogg file."""
    if not head.startswith(b"OggS"):
        return None
    file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _OGG_MAX_PAGE_BYTES))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    if len(page) < _OGG_HEADER_BYTES:
        return False, 0
    flags, granule = struct.unpack_from("<Bq", page, 5)
    body = _OGG_HEADER_BYTES + page[_OGG_HEADER_BYTES - 1]
    is_whole = len(page) >= body + sum(page[_OGG_HEADER_BYTES:body])
    return is_whole and bool(flags & _OGG_LAST_PAGE_FLAG), granule


RATES_HZ = range(1_000, 768_001)
"""Beyond these a header is damaged."""

MPEG_SLACK_FRAMES = 2 * 1152
"""MP3 encoders disagree by a block or two on how many samples a file has."""

MPEG_TAG_BYTES = 512
"""What may follow the sound of an MP3."""

OGG_SLACK_SECONDS = 0.1
"""The start of an Opus stream is decoded and thrown away, but counted in its pages."""

MPG123_REMARKS = re.compile(rb"\[[^\]]*libmpg123|Note: |Warning: ")
"""What libmpg123, with which libsndfile decodes MP3, writes about damaged files. It cannot be quietened."""

_UNKNOWN_FRAMES = 1 << 62


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """What a sound file's header says."""

    path: Path
    frames: int
    """Samples per channel."""
    rate_hz: int
    channels: int
    container: str
    encoding: str

    @property
    def seconds(self) -> float:
        return self.frames / self.rate_hz


class OpenClip(NamedTuple):
    """A file that libsndfile has opened."""

    info: ClipInfo
    sound: soundfile.SoundFile
    file: FileIO
    """The descriptor that `sound` reads through: its position tells how far decoding came."""


@contextmanager
def open_clip(path: Path) -> Iterator[OpenClip]:
    """The opened file. Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated) without decoding anything."""
    with _name_read_errors(path), open_file(path) as file:
        head = file.read(HEAD_BYTES)
        if not head:
            raise ClipError(path, DropReason.EMPTY, f"must hold sound, but has no bytes. {REPLACE}")
        missing = count_missing_bytes(file, head)
        if missing:
            text = f"is cut off: its header promises {missing} more bytes of sound than the file has. {COPY}"
            raise ClipError(path, DropReason.TRUNCATED, text)
        last_page = find_last_ogg_page(file, head)
        file.seek(0)
        with (
            drop_lines(MPG123_REMARKS) if may_hold_mpeg(head) else nullcontext(),
            _open_sound(path, file, head, last_page) as sound,
        ):
            info = ClipInfo(path, sound.frames, sound.samplerate, sound.channels, sound.format, sound.subtype)
            _check_header(info, last_page)
            yield OpenClip(info, sound, file)


@contextmanager
def _name_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except MissingFileError as error:
        raise ClipError(path, DropReason.MISSING, error.problem) from None
    except FileError as error:
        raise ClipError(path, DropReason.UNREADABLE, f"{error.problem} {REPLACE}") from None
    except OSError as error:
        # A bad sector, or a mount that is gone: the file may be opened, and gives nothing.
        text = f"cannot be read ({error.strerror}). Check the disk or the mount it is on. {REPLACE}"
        raise ClipError(path, DropReason.UNREADABLE, text) from error


def _open_sound(path: Path, file: FileIO, head: bytes, last_page: OggPage | None) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        foreign = next((name for (at, magic), name in _FOREIGN_FORMATS.items() if head.startswith(magic, at)), None)
        if foreign:
            text = f"must be wav, flac, ogg or mp3, but is {foreign}. {CONVERT}"
            raise ClipError(path, DropReason.UNSUPPORTED, text) from None
        if last_page is not None and not last_page[0]:
            text = f"is cut off: its Ogg stream has no last page. {COPY}"
            raise ClipError(path, DropReason.TRUNCATED, text) from None
        text = f"cannot be read as sound: {error.error_string} {REPLACE}"
        raise ClipError(path, DropReason.CORRUPT, text) from None


def _check_header(info: ClipInfo, last_page: OggPage | None) -> None:
    if info.rate_hz not in RATES_HZ:
        text = f"must have a rate of {RATES_HZ[0]} to {RATES_HZ[-1]} Hz, but its header says {info.rate_hz}. {REPLACE}"
        raise ClipError(info.path, DropReason.CORRUPT, text)
    if info.frames >= _UNKNOWN_FRAMES:
        text = f"must say how long it is, but was written to a pipe, without a length. {CONVERT}"
        raise ClipError(info.path, DropReason.UNSUPPORTED, text)
    if last_page is not None:
        # A page of which one bit has flipped fails its checksum, and libsndfile ends the stream there.
        clock_hz = 48000 if info.encoding == "OPUS" else info.rate_hz
        ends_stream, granule = last_page
        missing_s = granule / clock_hz - info.seconds
        if missing_s > OGG_SLACK_SECONDS:
            reason = DropReason.CORRUPT if ends_stream else DropReason.TRUNCATED
            text = f"is damaged or cut off: {missing_s:.2f} s of its Ogg stream cannot be decoded. {COPY}"
            raise ClipError(info.path, reason, text)
    if info.frames <= 0:
        text = f"must hold sound, but has a header and no samples. {REPLACE}"
        raise ClipError(info.path, DropReason.EMPTY, text)


BLOCK_FRAMES = 1 << 20
"""Decoded at a time, so that a header's claim never decides how much memory is asked for."""

_BEHIND_CUT_SECONDS = 1.0

SILENCE_SPAN = 2.0**-13
"""A clip whose samples all lie this close together is silent: four steps of 16 bits, about -78 dB."""

LOUDEST_PEAK = 16.0
"""Full scale is 1 and a hot recording may pass it; a float file of 16-bit numbers has a peak of 32768."""


def inspect_clip(path: str | os.PathLike[str], *, most_seconds: float = math.inf) -> ClipInfo:
    """What a file's header says, in a fraction of a millisecond: nothing is decoded.

    Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated, too_long) for what is told by that.
    """
    with open_clip(Path(path)) as clip:
        info = clip.info
    if info.seconds > most_seconds:
        text = (
            f"must last at most {most_seconds:g} s, but lasts {info.seconds:.3f} s. Cut it at a pause, with its text."
        )
        raise ClipError(info.path, DropReason.TOO_LONG, text)
    return info


def read_clip(
    path: str | os.PathLike[str], rate_hz: int = SAMPLE_RATE_HZ, *, most_seconds: float = math.inf
) -> NDArray[np.float32]:
    """The samples of a file: one channel (the mean of all), at `rate_hz`, in [-1, 1].

    What is behind `most_seconds` is not decoded, so damage there is not seen.

    Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated, nan).
    """
    with open_clip(Path(path)) as clip:
        # A little more, so that the filter finds what follows at the cut.
        samples = _decode_mono(clip, most_seconds + _BEHIND_CUT_SECONDS)
    samples = resample_clip(samples, clip.info.rate_hz, rate_hz)
    if len(samples) > most_seconds * rate_hz:
        samples = samples[: round(most_seconds * rate_hz)]
    # Last, as the reference does it: lossy formats and the resampling itself overshoot.
    return np.clip(samples, -1.0, 1.0, out=samples)


def read_clip_into(path: str, row: NDArray[np.float32]) -> int:
    """Fill the beginning of a row with the samples of a file, as `read_clip` gives them; how many there are.

    Of more than the row takes, the rest is left out. Raises `ClipError` as `read_clip` does.
    """
    with _name_read_errors(Path(path)):
        samples = _read_plain(path)
    if samples is not None and len(samples) <= len(row):
        np.multiply(samples, PLAIN_SCALE, out=row[: len(samples)])
        return len(samples)
    decoded = read_clip(path)
    row[: len(decoded)] = decoded[: len(row)]
    return len(decoded)


def _read_plain(path: str) -> NDArray[np.int16] | None:
    """The samples of plain wav, many times faster than libsndfile gives them; None for any other file."""
    if not path.endswith((".wav", ".WAV")):
        return None
    with open_file(path) as file:
        # The head first: most of what is no plain wav is long, and would be read twice.
        if not _is_plain(file.read(8 + len(PLAIN_FORMAT))):
            return None
        file.seek(0)
        return find_plain_samples(file.read())


def check_clip(path: str | os.PathLike[str], *, most_seconds: float = math.inf) -> ClipInfo:
    """What a file's header says, after all of the file was decoded and found usable; a longer one is not decoded.

    Raises `ClipError` with the first problem met.
    """
    with open_clip(Path(path)) as clip:
        if clip.info.seconds > most_seconds:
            return clip.info
        samples = _decode_mono(clip)
    # Not the peak: a constant offset is silence too.
    span = float(np.ptp(samples))
    if span < SILENCE_SPAN:
        averaged = ", once its channels are averaged" if clip.info.channels > 1 else ""
        text = f"must hold sound, but its samples span only {span:.1e} of full scale{averaged}. {REPLACE}"
        raise ClipError(clip.info.path, DropReason.SILENT, text)
    return clip.info


def iter_clip(path: str | os.PathLike[str], rate_hz: int) -> Iterator[NDArray[np.float32]]:
    """The samples of a file of any length in blocks, as `read_clip` gives them but for the resampler, which is soxr's.

    Raises `ClipError` as `read_clip` does, and then perhaps behind the first blocks.
    """
    with open_clip(Path(path)) as clip:
        resample = stream_resampled(clip.info.rate_hz, rate_hz)
        for block in _decode_blocks(clip):
            yield np.clip(resample(block, False), -1.0, 1.0)
        yield np.clip(resample(np.zeros(0, np.float32), True), -1.0, 1.0)


def _decode_mono(clip: OpenClip, most_seconds: float = math.inf) -> NDArray[np.float32]:
    """The mean of all channels at the file's rate: finite, and as long as the header promises, or as `most_seconds`."""
    blocks = list(_decode_blocks(clip, most_seconds))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _decode_blocks(clip: OpenClip, most_seconds: float = math.inf) -> Iterator[NDArray[np.float32]]:
    """What `_decode_mono` gives, block by block."""
    failure = ""
    most = most_seconds * clip.info.rate_hz
    count = 0
    while count < most:
        try:
            block = clip.sound.read(math.ceil(min(BLOCK_FRAMES, most - count)), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            failure = error.error_string
            break
        if not len(block):
            break
        samples = _average_channels(block)
        _check_values(clip.info, samples)
        yield samples
        count += len(block)
    if count < most:
        _check_decoded(clip, count, failure)


def _average_channels(block: NDArray[np.float32]) -> NDArray[np.float32]:
    if block.shape[1] == 1:
        return block[:, 0]
    # Column by column is several times faster than a mean along the short axis. What overflows is refused afterwards.
    with np.errstate(over="ignore", invalid="ignore"):
        total = block[:, 0] + block[:, 1]
        for channel in range(2, block.shape[1]):
            total += block[:, channel]
        total /= np.float32(block.shape[1])
    return total


def _check_decoded(clip: OpenClip, frames: int, failure: str) -> None:
    info = clip.info
    is_mpeg = "MPEG" in info.encoding
    unread_bytes = max(0, os.fstat(clip.file.fileno()).st_size - clip.file.tell())
    if not failure and frames > 0 and info.frames - frames <= (MPEG_SLACK_FRAMES if is_mpeg else 0):
        # The length of an MP3 without an index is guessed from its first frame's bit rate, and nothing is decoded beyond it.
        if is_mpeg and unread_bytes > MPEG_TAG_BYTES:
            begin = os.pread(clip.file.fileno(), 1 << 16, 0)
            if not any(index in begin for index in (b"Xing", b"Info", b"VBRI")):
                text = f"is an MP3 of varying bit rate without an index: it would be cut to {info.seconds:.2f} s. {CONVERT}"
                raise ClipError(info.path, DropReason.UNSUPPORTED, text)
        return
    why = f" ({failure})" if failure else ""
    if not unread_bytes:
        text = f"is cut off{why}: its header promises {info.frames} samples, {frames} could be decoded. {COPY}"
        raise ClipError(info.path, DropReason.TRUNCATED, text)
    text = f"is damaged{why}: {frames} of {info.frames} samples could be decoded. {REPLACE}"
    raise ClipError(info.path, DropReason.CORRUPT, text)


def _check_values(info: ClipInfo, samples: NDArray[np.float32]) -> None:
    low, high = float(samples.min()), float(samples.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        text = f"must hold numbers, but has samples that are infinite or not a number. {REPLACE}"
        raise ClipError(info.path, DropReason.NAN, text)
    peak = max(-low, high)
    if peak > LOUDEST_PEAK:
        text = f"must have samples of about -1 to 1, but they reach {peak:.4g}. Scale them, or write the file as 16-bit integers."
        raise ClipError(info.path, DropReason.CORRUPT, text)
