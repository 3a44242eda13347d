"""From the name a metadata line gives to the file on disk."""

from __future__ import annotations

import os
import stat
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.data.corpus import TextColumn, TextColumnBuilder
from myxtts.data.ljspeech import Metadata
from myxtts.hashing import digest64

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
"""Looked for in this order when a line gives an id, or an extension the file does not have."""

AUDIO_FOLDER = "wavs/"

_SUFFIXES = (*AUDIO_SUFFIXES, *(suffix.upper() for suffix in AUDIO_SUFFIXES))


class FoundClip(NamedTuple):
    """A regular file that a metadata line means."""

    path: str
    """Relative to the corpus root, with forward slashes."""
    size_bytes: int
    mtime_ns: int
    link: str
    """The symbolic link on the way to it, relative to the corpus root; empty when there is none."""


class ClipFinder:
    """Finds clips below one corpus root. Looks at directory entries only, never into files."""

    def __init__(self, root: Path):
        self._base = f"{root}/"
        self._links: dict[str, str | None] = {"": ""}

    def find(self, prefix: str, name: str) -> FoundClip | None:
        """The file that `name` means in the folder `prefix` (empty or ending in a slash), or None."""
        for candidate in _list_candidates(name):
            found = self._look_at(prefix + candidate)
            if found is not None:
                return found
        return None

    def _look_at(self, path: str) -> FoundClip | None:
        link = self._find_link(path.rpartition("/")[0])
        if link is None:
            return None
        try:
            status = os.lstat(self._base + path)
            if stat.S_ISLNK(status.st_mode):
                link = link or path
                status = os.stat(self._base + path)
        except OSError:
            return None
        # Opening a named pipe would wait for ever.
        if not stat.S_ISREG(status.st_mode):
            return None
        return FoundClip(path, status.st_size, status.st_mtime_ns, link)

    def _find_link(self, folder: str) -> str | None:
        """The outermost symbolic link among a folder and those above it, "" if there is none, None if no such folder.

        Remembered: asking the disk about folders that do not exist would double the cost of a warm start.
        """
        if folder not in self._links:
            above = self._find_link(folder.rpartition("/")[0])
            path = self._base + folder
            self._links[folder] = (above or (folder if os.path.islink(path) else "")) if os.path.isdir(path) else None
        return self._links[folder]


def _list_candidates(name: str) -> Iterator[str]:
    """Where to look, best guess first."""
    folders = ("", AUDIO_FOLDER) if "/" in name else (AUDIO_FOLDER, "")
    for spelling in _list_spellings(name):
        file_name = spelling.rpartition("/")[2]
        stem, dot, suffix = spelling.rpartition(".")
        if "." in file_name:
            yield from (folder + spelling for folder in folders)
        if dot and dot + suffix in _SUFFIXES and "." in file_name:
            spelling = stem
        for ending in _SUFFIXES:
            yield from (folder + spelling + ending for folder in folders)


def _list_spellings(name: str) -> Iterator[str]:
    yield name
    if not name.isascii():
        # macOS stores "é" as two characters, most editors write one.
        yield from dict.fromkeys(
            other for form in ("NFC", "NFD") if (other := unicodedata.normalize(form, name)) != name
        )


@dataclass(frozen=True, eq=False)
class LocatedClips:
    """The file of every metadata line, in columns."""

    path: TextColumn
    """Relative to the corpus root; where no file was found, what the metadata says."""
    key: NDArray[np.int64]
    """A hash of the path."""
    is_found: NDArray[np.bool_]
    is_linked: NDArray[np.bool_]
    size_bytes: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    first_link: str
    """An example of a symbolic link that was met; empty when there was none."""


def locate_clips(metadata: Metadata) -> LocatedClips:
    """The file each line of the metadata means."""
    finder = ClipFinder(metadata.root)
    paths = TextColumnBuilder()
    sizes, times = array("q"), array("q")
    found_flags, link_flags = bytearray(), bytearray()
    first_link = ""
    for name, file_number in zip(metadata.audio, metadata.file_numbers, strict=True):
        prefix = metadata.files[file_number].prefix
        found = finder.find(prefix, name)
        paths.append(found.path if found else prefix + name)
        sizes.append(found.size_bytes if found else 0)
        times.append(found.mtime_ns if found else 0)
        found_flags.append(found is not None)
        link_flags.append(found is not None and found.link != "")
        if found and not first_link:
            first_link = found.link
    path = paths.build()
    return LocatedClips(
        path=path,
        key=np.fromiter(map(digest64, path.iter_bytes()), dtype=np.int64, count=len(path)),
        is_found=np.frombuffer(found_flags, dtype=np.bool_),
        is_linked=np.frombuffer(link_flags, dtype=np.bool_),
        size_bytes=np.array(sizes, dtype=np.int64),
        mtime_ns=np.array(times, dtype=np.int64),
        first_link=first_link,
    )
