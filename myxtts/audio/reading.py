"""A recording from its file: header, samples, and why not. Every clip is decoded here."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from myxtts.audio import containers
from myxtts.audio.resampling import resample_clip
from myxtts.devices.native_stderr import drop_lines
from myxtts.errors import CONVERT, COPY, REPLACE, ClipError, DropReason
from myxtts.files import FileError, MissingFileError, open_file
from myxtts.units import SAMPLE_RATE_HZ

RATES_HZ = range(1_000, 768_001)
"""Beyond these a header is damaged."""

MPEG_SLACK_FRAMES = 2 * 1152
"""MP3 encoders disagree by a block or two on how many samples a file has."""

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


@dataclass(frozen=True, slots=True)
class OpenClip:
    """A file that libsndfile has opened."""

    info: ClipInfo
    sound: soundfile.SoundFile
    file: FileIO
    """The descriptor that `sound` reads through: its position tells how far decoding came."""

    def is_read_up(self) -> bool:
        """Whether every byte of the file was taken."""
        return self.file.tell() >= os.fstat(self.file.fileno()).st_size


@contextmanager
def open_clip(path: Path) -> Iterator[OpenClip]:
    """The opened file. Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated) without decoding anything."""
    with _name_read_errors(path), open_file(path) as file:
        head = file.read(containers.HEAD_BYTES)
        if not head:
            raise ClipError(path, DropReason.EMPTY, f"must hold sound, but has no bytes. {REPLACE}")
        missing = containers.count_missing_bytes(file, head)
        if missing:
            text = f"is cut off: its header promises {missing} more bytes of sound than the file has. {COPY}"
            raise ClipError(path, DropReason.TRUNCATED, text)
        may_hold_mpeg = containers.may_hold_mpeg(file, head)
        mpeg_frames = containers.count_mpeg_samples(file) if may_hold_mpeg else None
        last_page = containers.find_last_ogg_page(file, head)
        file.seek(0)
        with (
            drop_lines(MPG123_REMARKS) if may_hold_mpeg else nullcontext(),
            _open_sound(path, file, head, last_page) as sound,
        ):
            info = ClipInfo(path, sound.frames, sound.samplerate, sound.channels, sound.format, sound.subtype)
            _check_header(info, mpeg_frames, last_page)
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


def _open_sound(path: Path, file: FileIO, head: bytes, last_page: containers.OggPage | None) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        foreign = containers.name_foreign_format(head)
        if foreign:
            text = f"must be wav, flac, ogg or mp3, but is {foreign}. {CONVERT}"
            raise ClipError(path, DropReason.UNSUPPORTED, text) from None
        if last_page is not None and not last_page.ends_stream:
            text = f"is cut off: its Ogg stream has no last page. {COPY}"
            raise ClipError(path, DropReason.TRUNCATED, text) from None
        text = f"cannot be read as sound: {error.error_string} {REPLACE}"
        raise ClipError(path, DropReason.CORRUPT, text) from None


def _check_header(info: ClipInfo, mpeg_frames: int | None, last_page: containers.OggPage | None) -> None:
    if info.rate_hz not in RATES_HZ:
        text = f"must have a rate of {RATES_HZ[0]} to {RATES_HZ[-1]} Hz, but its header says {info.rate_hz}. {REPLACE}"
        raise ClipError(info.path, DropReason.CORRUPT, text)
    if info.frames >= _UNKNOWN_FRAMES:
        text = f"must say how long it is, but was written to a pipe, without a length. {CONVERT}"
        raise ClipError(info.path, DropReason.UNSUPPORTED, text)
    if mpeg_frames is not None and mpeg_frames > info.frames + MPEG_SLACK_FRAMES:
        seconds = f"{info.seconds:.2f} of {mpeg_frames / info.rate_hz:.2f} s"
        text = f"is an MP3 of varying bit rate without an index: it would be cut to {seconds}. {CONVERT}"
        raise ClipError(info.path, DropReason.UNSUPPORTED, text)
    if last_page is not None:
        # A page of which one bit has flipped fails its checksum, and libsndfile ends the stream there.
        clock_hz = 48000 if info.encoding == "OPUS" else info.rate_hz
        missing_s = last_page.granule / clock_hz - info.seconds
        if missing_s > OGG_SLACK_SECONDS:
            reason = DropReason.CORRUPT if last_page.ends_stream else DropReason.TRUNCATED
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


def inspect_clip(path: str | os.PathLike[str]) -> ClipInfo:
    """What a file's header says, in a fraction of a millisecond: nothing is decoded.

    Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated) for what can be told without decoding.
    """
    with open_clip(Path(path)) as clip:
        return clip.info


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

    Of more than the row takes, the rest is left out. Raises `ClipError` as `read_clip` does, `FileError` and `OSError`.
    """
    samples = _read_plain(path)
    if samples is not None and len(samples) <= len(row):
        np.multiply(samples, containers.PLAIN_SCALE, out=row[: len(samples)])
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
        if not containers.is_plain(file.read(len(containers.PLAIN_HEAD))):
            return None
        file.seek(0)
        return containers.find_plain_samples(file.read())


def check_clip(path: str | os.PathLike[str]) -> ClipInfo:
    """What a file's header says, after all of the file was decoded and found usable.

    Raises `ClipError` with the first problem met.
    """
    with open_clip(Path(path)) as clip:
        samples = _decode_mono(clip)
    # Not the peak: a constant offset is silence too.
    span = float(np.ptp(samples))
    if span < SILENCE_SPAN:
        averaged = ", once its channels are averaged" if clip.info.channels > 1 else ""
        text = f"must hold sound, but its samples span only {span:.1e} of full scale{averaged}. {REPLACE}"
        raise ClipError(clip.info.path, DropReason.SILENT, text)
    return clip.info


def check_duration(info: ClipInfo, *, max_seconds: float) -> None:
    """Raises `ClipError` (too_long) when a clip is longer than this."""
    if info.seconds > max_seconds:
        text = f"must last at most {max_seconds:g} s, but lasts {info.seconds:.3f} s. Cut it at a pause, with its text."
        raise ClipError(info.path, DropReason.TOO_LONG, text)


def _decode_mono(clip: OpenClip, most_seconds: float = math.inf) -> NDArray[np.float32]:
    """The mean of all channels at the file's rate: finite, and as long as the header promises, or as `most_seconds`."""
    blocks: list[NDArray[np.float32]] = []
    failure = ""
    most = most_seconds * clip.info.rate_hz
    count = 0
    try:
        while count < most and len(
            block := clip.sound.read(math.ceil(min(BLOCK_FRAMES, most - count)), dtype="float32", always_2d=True)
        ):
            blocks.append(_average_channels(block))
            count += len(block)
    except soundfile.LibsndfileError as error:
        failure = error.error_string
    if count < most:
        _check_decoded(clip, count, failure)
    samples = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    _check_values(clip.info, samples)
    return samples


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
    slack = MPEG_SLACK_FRAMES if "MPEG" in info.encoding else 0
    if not failure and frames > 0 and info.frames - frames <= slack:
        return
    why = f" ({failure})" if failure else ""
    if clip.is_read_up():
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
