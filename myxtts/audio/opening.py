"""A sound file, opened, with a header that was found plausible."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import soundfile

from myxtts.audio import containers
from myxtts.audio.clip_errors import CONVERT, COPY, REPLACE, ClipError, ClipProblem
from myxtts.devices.native_stderr import drop_lines
from myxtts.files import FileError, MissingFileError, open_file

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
            raise ClipError(path, ClipProblem.EMPTY, f"must hold sound, but has no bytes. {REPLACE}")
        missing = containers.count_missing_bytes(file, head)
        if missing:
            text = f"is cut off: its header promises {missing} more bytes of sound than the file has. {COPY}"
            raise ClipError(path, ClipProblem.TRUNCATED, text)
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
        raise ClipError(path, ClipProblem.MISSING, error.problem) from None
    except FileError as error:
        raise ClipError(path, ClipProblem.UNREADABLE, f"{error.problem} {REPLACE}") from None
    except OSError as error:
        # A bad sector, or a mount that is gone: the file may be opened, and gives nothing.
        text = f"cannot be read ({error.strerror}). Check the disk or the mount it is on. {REPLACE}"
        raise ClipError(path, ClipProblem.UNREADABLE, text) from error


def _open_sound(path: Path, file: FileIO, head: bytes, last_page: containers.OggPage | None) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        foreign = containers.name_foreign_format(head)
        if foreign:
            text = f"must be wav, flac, ogg or mp3, but is {foreign}. {CONVERT}"
            raise ClipError(path, ClipProblem.UNSUPPORTED, text) from None
        if last_page is not None and not last_page.ends_stream:
            text = f"is cut off: its Ogg stream has no last page. {COPY}"
            raise ClipError(path, ClipProblem.TRUNCATED, text) from None
        text = f"cannot be read as sound: {error.error_string} {REPLACE}"
        raise ClipError(path, ClipProblem.CORRUPT, text) from None


def _check_header(info: ClipInfo, mpeg_frames: int | None, last_page: containers.OggPage | None) -> None:
    if info.rate_hz not in RATES_HZ:
        text = f"must have a rate of {RATES_HZ[0]} to {RATES_HZ[-1]} Hz, but its header says {info.rate_hz}. {REPLACE}"
        raise ClipError(info.path, ClipProblem.CORRUPT, text)
    if info.frames >= _UNKNOWN_FRAMES:
        text = f"must say how long it is, but was written to a pipe, without a length. {CONVERT}"
        raise ClipError(info.path, ClipProblem.UNSUPPORTED, text)
    if mpeg_frames is not None and mpeg_frames > info.frames + MPEG_SLACK_FRAMES:
        seconds = f"{info.seconds:.2f} of {mpeg_frames / info.rate_hz:.2f} s"
        text = f"is an MP3 of varying bit rate without an index: it would be cut to {seconds}. {CONVERT}"
        raise ClipError(info.path, ClipProblem.UNSUPPORTED, text)
    if last_page is not None:
        # A page of which one bit has flipped fails its checksum, and libsndfile ends the stream there.
        clock_hz = 48000 if info.encoding == "OPUS" else info.rate_hz
        missing_s = last_page.granule / clock_hz - info.seconds
        if missing_s > OGG_SLACK_SECONDS:
            problem = ClipProblem.CORRUPT if last_page.ends_stream else ClipProblem.TRUNCATED
            text = f"is damaged or cut off: {missing_s:.2f} s of its Ogg stream cannot be decoded. {COPY}"
            raise ClipError(info.path, problem, text)
    if info.frames <= 0:
        text = f"must hold sound, but has a header and no samples. {REPLACE}"
        raise ClipError(info.path, ClipProblem.EMPTY, text)
