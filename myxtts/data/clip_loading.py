"""One clip from its file into one row of a batch: the same samples whoever does it."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import read_clip
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReason
from myxtts.data.pcm_wav import HEAD_BYTES, PCM_SCALE, find_samples, is_plain_head
from myxtts.data.workers import Work
from myxtts.files import FileError, open_file

Row = NDArray[np.float32]
"""Samples of one clip, and zeros behind them."""


class ClipFile(NamedTuple):
    """A clip's file as the scan found it."""

    path: str
    samples: int
    """At the model's rate."""
    size_bytes: int
    mtime_ns: int


def find_clip_file(corpus: Corpus, clip: int) -> ClipFile:
    """The file of a clip, as its corpus has it."""
    return ClipFile(
        # Not by joining paths: that would cost as much as reading a small clip.
        f"{corpus.root}/{corpus.audio[clip]}",
        int(corpus.samples[clip]),
        int(corpus.size_bytes[clip]),
        int(corpus.mtime_ns[clip]),
    )


@dataclass(frozen=True)
class LoadFailure:
    """Why a clip could not be used now, though its scan found nothing wrong with it."""

    reason: DropReason
    detail: str


def is_unchanged(file: ClipFile) -> bool:
    """Whether a file is there, and still the one that was scanned."""
    try:
        return _matches_scan(file)
    except OSError:
        return False


def _matches_scan(file: ClipFile) -> bool:
    status = os.stat(file.path)
    return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)


def load_clip(file: ClipFile, row: Row) -> LoadFailure | None:
    """Fill a row with a clip and zeros behind it. Given a failure, what is in the row has no meaning."""
    try:
        if not _matches_scan(file):
            return LoadFailure(
                DropReason.CHANGED, "the file is not the one that was scanned; start again to scan it anew"
            )
        samples = _load_plain(file, row) or _load_any(file, row)
    except ClipError as error:
        return LoadFailure(DropReason(error.problem), str(error).removeprefix(f"{file.path}: "))
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        reason = DropReason.MISSING if is_gone else DropReason.UNREADABLE
        return LoadFailure(reason, f"cannot be read: {error.strerror}")
    except FileError as error:
        return LoadFailure(DropReason.UNREADABLE, error.problem)
    if samples != file.samples:
        return LoadFailure(DropReason.CHANGED, f"has {samples} samples, but had {file.samples} when it was scanned")
    row[samples:] = 0.0
    return None


def _load_plain(file: ClipFile, row: Row) -> int:
    """Samples that were loaded, or 0 when this is not a file that can be taken as it is."""
    if not file.path.endswith((".wav", ".WAV")):
        return 0
    with open_file(file.path) as stream:
        # The head first: most of what is no plain wav is long, and would be read twice.
        if not is_plain_head(stream.read(HEAD_BYTES)):
            return 0
        stream.seek(0)
        content = stream.read()
    samples = find_samples(content)
    if samples is None or len(samples) > len(row):
        return 0
    np.multiply(samples, PCM_SCALE, out=row[: len(samples)])
    return len(samples)


def _load_any(file: ClipFile, row: Row) -> int:
    samples = read_clip(file.path)
    row[: len(samples)] = samples[: len(row)]
    return len(samples)


def make_loader(memory_fd: int) -> Work:
    """The work of a reader process: takes a `ClipFile`'s values and the row's first and last sample in the shared memory.

    Gives nothing, or a failure's reason and detail.
    """
    memory = np.frombuffer(mmap.mmap(memory_fd, 0), dtype=np.float32)

    def load(item: tuple[str, int, int, int, int, int]) -> list[str] | None:
        failure = load_clip(ClipFile(*item[:4]), memory[item[4] : item[5]])
        return [failure.reason, failure.detail] if failure else None

    return load
