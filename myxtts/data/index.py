"""What was found out about a corpus, kept on disk so that nothing is looked at twice.

Kept files are named after their content, written whole, and never changed. So any number of processes may write to one folder,
on storage that machines share too, and one that is killed loses only what it had not written yet. A file that is not what its
name says is not used: whoever made a corpus may have put it there."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.errors import ReadingError
from myxtts.files import FileError, WriteError, open_file_atomically, read_bytes
from myxtts.hashing import digest64

_log = logging.getLogger(__name__)

FOLDER_NAME = ".myxtts"
"""In a corpus, of what was found out about it."""

_MOST_BYTES = 1 << 28
"""Of a file of the index."""


def write_named(folder: Path, prefix: str, suffix: str, content: bytes | memoryview) -> None:
    """Write a file named `{prefix}-{digest of its content}{suffix}`. Raises `WriteError`."""
    # A link that came with a corpus would have its target written over.
    with open_file_atomically(folder / f"{prefix}-{_digest(content)}{suffix}", follows_link=False) as file:
        file.write(content)


def read_named(path: Path, most_bytes: int) -> bytes | None:
    """The content of a file that `write_named` has written; None where it cannot be read, or is not what its name says."""
    try:
        content = read_bytes(path, most_bytes)
    except FileError:
        return None
    return content if path.stem.endswith(f"-{_digest(content)}") else None


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


class ClipIndex:
    """What earlier scans found out about files: rows of a key, which is another one when a file has changed, and values.

    It never ends a scan. Where it cannot be written, nothing is remembered; a file that is damaged is made anew.

    Args:
        folder: None remembers nothing.
        name: of its files; must change when rows made earlier are no longer valid.
        bounds: of the values in a row, none of which is taken unseen.
    """

    def __init__(self, folder: Path | None, name: str, bounds: Sequence[tuple[int, int]]):
        self._folder = folder
        self._name = name
        self._bounds = np.array(bounds, dtype=np.int64)

    def find(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The values of each key, and whether there are any."""
        values, known = np.zeros((len(keys), len(self._bounds)), np.int64), np.zeros(len(keys), np.bool_)
        for path in sorted(self._folder.glob(f"{self._name}-*.rows")) if self._folder else ():
            rows = self._read(path)
            if rows is None:
                _log.warning("The scan's index %s is damaged and made anew.", path)
                with suppress(OSError):
                    path.unlink()
                continue
            rows = rows[np.argsort(rows[:, 0])]
            places = np.minimum(np.searchsorted(rows[:, 0], keys), len(rows) - 1)
            found = rows[places, 0] == keys
            values[found] = rows[places[found], 1:]
            known |= found
        return values, known

    def append(self, rows: NDArray[np.int64]) -> None:
        if self._folder is None or not len(rows):
            return
        try:
            write_named(self._folder, self._name, ".rows", rows.astype("<i8").tobytes())
        except WriteError as error:
            _log.warning(
                "The scan's results cannot be kept in %s (%s); the next scan starts anew.", self._folder, error.reason
            )
            self._folder = None

    def _read(self, path: Path) -> NDArray[np.int64] | None:
        content, columns = read_named(path, _MOST_BYTES), 1 + len(self._bounds)
        if not content or len(content) % (8 * columns):
            return None
        rows = np.frombuffer(content, "<i8").reshape(-1, columns)
        is_possible = (rows[:, 1:] >= self._bounds[:, 0]) & (rows[:, 1:] <= self._bounds[:, 1])
        return rows if is_possible.all() else None


def choose_index_folder(root: Path, *, given: Path | None = None) -> Path | None:
    """An existing, writable folder for what is found out about a corpus, or None when there is none at all.

    That is the user's cache, by the real path of the corpus, or the corpus itself once `claim_corpus_folder` was called. One that is
    given is taken, or it is an error.
    """
    if given is not None:
        if _make_writable(given):
            return given
        raise ReadingError(f"The folder for scan results, {given}, cannot be written to. Give another one.")
    own = root / FOLDER_NAME
    if own.is_dir() and not _is_marked_read_only(root) and _make_writable(own):
        return own
    cached = _find_cached_folder(root)
    if cached is not None and _make_writable(cached):
        return cached
    _log.warning("%s cannot be written to: the scan is not remembered.", cached or "The user's cache folder")
    return None


def claim_corpus_folder(root: Path) -> bool:
    """Whether what is found out about a corpus is kept in the corpus itself from now on, where other users and machines find it.

    Never through a symbolic link.
    """
    return not _is_marked_read_only(root) and _make_writable(root / FOLDER_NAME)


def _is_marked_read_only(folder: Path) -> bool:
    # Asked by mode: root may write everywhere, also where the owner of a corpus said that nobody shall.
    return not folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def _find_cached_folder(root: Path) -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        # A user without a home folder, as containers have them.
        return None
    return home / "myxtts" / "corpora" / f"{digest64(os.fsencode(root.resolve())) & (1 << 64) - 1:016x}"


def _make_writable(folder: Path) -> bool:
    if folder.is_symlink():
        # Whoever made the corpus would say where we write.
        _log.warning("%s is a symbolic link, which is not followed.", folder)
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
