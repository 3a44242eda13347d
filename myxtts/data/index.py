"""What earlier scans found out, kept on disk so that nothing is looked at twice.

An index is a set of rows of 64-bit numbers, found by a 64-bit key. A scan appends rows to a file of its own while it
works and merges all files into one when it is done, so a scan that is killed loses at most its last chunk, and two scans
at a time cannot hurt each other. Every row carries its own check value: a torn or foreign row is ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from myxtts.data.errors import IndexFolderError
from myxtts.files import FileError, open_file
from myxtts.hashing import digest64, hash_words

_log = logging.getLogger(__name__)

FOLDER_NAME = ".myxtts"

Rows = NDArray[np.int64]
"""Two-dimensional: a row per entry, its key first."""


class Index:
    """Rows of `columns` numbers, the first of which is the key. With no folder it remembers for its own life only.

    Args:
        folder: where the files are.
        name: of the files; must change when rows made earlier are no longer valid.
    """

    def __init__(self, folder: Path | None, name: str, columns: int):
        self._folder = folder
        self._name = name
        self._columns = columns
        self._journal: BinaryIO | None = None
        self._rows = np.zeros((0, columns), dtype=np.int64)
        self._new: list[Rows] = []
        self.reload()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close_journal()

    def find(self, keys: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """For each key its row, and whether there is one (if not, the row is some other)."""
        if len(self._rows) == 0:
            return np.zeros((len(keys), self._columns), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
        places = np.minimum(np.searchsorted(self._rows[:, 0], keys), len(self._rows) - 1)
        rows = self._rows[places]
        return rows, rows[:, 0] == keys

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Remember rows, safely on disk as far as a killed process is concerned. `find` sees them after `reload`."""
        block = np.array(rows, dtype=np.int64).reshape(-1, self._columns)
        if self._folder is None:
            self._new.append(block)
            return
        try:
            if self._journal is None:
                self._journal = (self._folder / f"{self._name}.{secrets.token_hex(8)}.part").open("w+b")
            self._journal.write(_seal(block))
            self._journal.flush()
        except OSError as error:
            _log.warning(
                "The scan's results cannot be kept in %s (%s); the next scan starts anew.", self._folder, error
            )
            self._folder = None
            self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            # On a full disk closing fails like writing did, which was said already.
            with contextlib.suppress(OSError):
                self._journal.close()
            self._journal = None

    def reload(self) -> None:
        """Read again what is on disk, with what this object was given."""
        blocks = self._read_blocks()
        self._rows, self._new = np.zeros((0, self._columns), dtype=np.int64), []
        if len(blocks) == 1 and np.all(np.diff(blocks[0][:, 0]) > 0):
            # The usual case, a merged file alone, is not copied: at a million lines that matters.
            self._rows = blocks[0]
        elif blocks:
            # Reversed, so that the first of equal keys is the latest: later rows win.
            rows = np.concatenate(blocks)[::-1]
            del blocks
            _, first = np.unique(rows[:, 0], return_index=True)
            self._rows = rows[first]

    def _read_blocks(self) -> list[Rows]:
        """All rows, oldest first, in pieces that are not empty."""
        blocks = [self._rows, *(_unseal(path, self._columns) for path in self._list_files())]
        if self._journal is not None:
            # Through the open file: a scan that finished meanwhile has merged and removed what it saw of it.
            self._journal.seek(0)
            blocks.append(_unseal(self._journal, self._columns))
        return [block for block in [*blocks, *self._new] if len(block)]

    def merge(self) -> None:
        """Make one file of all, replacing it in one step. Call at the end of a scan that appended."""
        files = self._list_files()
        self.reload()
        if self._journal is not None:
            files.append(Path(self._journal.name))
        self._close_journal()
        if self._folder is None:
            return
        partial = self._folder / f"{self._name}.{secrets.token_hex(8)}.tmp"
        try:
            with partial.open("wb") as file:
                file.write(_seal(self._rows))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._folder / f"{self._name}.index")
        except OSError as error:
            _log.warning("The scan's index cannot be written to %s (%s).", self._folder, error)
            partial.unlink(missing_ok=True)
            return
        for path in files:
            if path.suffix == ".part":
                path.unlink(missing_ok=True)

    def _list_files(self) -> list[Path]:
        """The merged file first, then what other scans appended since."""
        if self._folder is None:
            return []
        own = Path(self._journal.name) if self._journal is not None else None
        parts = (path for path in self._folder.glob(f"{self._name}.*.part") if path != own)
        return [path for path in (self._folder / f"{self._name}.index", *sorted(parts)) if not path.is_symlink()]


def _seal(rows: Rows) -> memoryview:
    sealed = np.empty((len(rows), rows.shape[1] + 1), dtype="<i8")
    sealed[:, :-1] = rows
    sealed[:, -1] = hash_words(*rows.T).view(np.int64)
    return sealed.data


def _unseal(file: Path | BinaryIO, columns: int) -> Rows:
    try:
        with BufferedReader(open_file(file)) if isinstance(file, Path) else contextlib.nullcontext(file) as opened:
            numbers = np.fromfile(opened, dtype="<i8")
    except (OSError, FileError):
        # Not written yet, or merged by another scan just now; or the disk does not give it, and all is looked at again.
        return np.zeros((0, columns), dtype=np.int64)
    sealed = numbers[: len(numbers) // (columns + 1) * (columns + 1)].reshape(-1, columns + 1)
    rows = sealed[:, :-1]
    good = hash_words(*rows.T).view(np.int64) == sealed[:, -1] if len(rows) else np.ones(0, dtype=np.bool_)
    return rows if good.all() else rows[good]


def choose_index_folder(root: Path, *, given: Path | None = None) -> Path | None:
    """Where what is found out about a corpus goes: the user's cache, or the corpus itself once `claim_corpus_folder` was called.

    Args:
        root: the corpus folder.
        given: take this folder, or fail.

    Returns:
        An existing, writable folder, or None when there is none at all. Its name in the cache follows from the real path of the
        corpus.
    """
    if given is not None:
        if _make_writable(given):
            return given
        raise IndexFolderError(f"The folder for scan results, {given}, cannot be written to. Give another one.")
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
        probe = folder / f"{secrets.token_hex(8)}.tmp"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
