"""What earlier scans of a corpus found out, kept on disk so that nothing is looked at twice."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.data.errors import IndexFolderError
from myxtts.files import FileError, open_file
from myxtts.hashing import digest64, hash_words

_log = logging.getLogger(__name__)

FOLDER_NAME = ".myxtts"
"""In a corpus, of what was found out about it."""

_WAIT_SECONDS = 30.0
"""For another scan that writes just now: a write takes milliseconds."""
_ROWS_AT_ONCE = 1 << 14
_SQLITE_FILES = ("", "-journal", "-wal", "-shm")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_TROUBLES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}
"""Errors of the disk and the machine. Any other means that the file is not what it should be."""


class Index:
    """What earlier scans found out: rows of numbers in an SQLite file, to which several scans may add at a time.

    It never ends a scan. Where it cannot be written, nothing is remembered; one that is damaged is made anew. Whoever made a corpus
    may have put it there, so no value is taken unseen.

    Args:
        path: of the file; must change when rows made earlier are no longer valid. None remembers nothing.
        stamps: numbers in a row beside its key, which say what it holds for.
        bounds: of the values in a row, which follow.
    """

    def __init__(self, path: Path | None, stamps: int, bounds: Sequence[tuple[int, int]]):
        self._path = path
        self._stamps = stamps
        self._bounds = np.array(bounds, dtype=np.int64)
        columns = ["key", *(f"stamp{n}" for n in range(stamps)), *(f"value{n}" for n in range(len(bounds))), "hash"]
        self._columns = len(columns)
        self._schema = f"CREATE TABLE facts ({', '.join(f'{name} INTEGER' for name in columns)})"
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def find(self, keys: NDArray[np.int64], stamps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The values of each key, and whether there are any for these stamps. Rows for other stamps are removed."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        values = np.zeros((len(distinct), len(self._bounds)), dtype=np.int64)
        known = np.zeros(len(distinct), dtype=np.bool_)
        stale: list[list[int]] = []
        try:
            for rows in self._read() if len(keys) else ():
                places = np.minimum(np.searchsorted(distinct, rows[:, 1]), len(distinct) - 1)
                is_asked = distinct[places] == rows[:, 1]
                is_true = np.all(rows[:, 2 : 2 + self._stamps] == stamps[first[places]], axis=1) & self._verify(rows)
                found = is_asked & is_true
                values[places[found]] = rows[found, 2 + self._stamps : -1]
                known[places[found]] = True
                stale += rows[is_asked & ~is_true, :1].tolist()
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
            known[:] = False
            stale.clear()
        self._write("DELETE FROM facts WHERE rowid = ?", stale)
        return values[inverse], known[inverse]

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Remember rows of a key, stamps and values, safely on disk as far as a killed process is concerned."""
        block = np.array(rows, dtype=np.int64).reshape(-1, self._columns - 1)
        hashed = np.column_stack([block, _hash(block)]).tolist()
        self._write(f"INSERT INTO facts VALUES ({', '.join('?' * self._columns)})", hashed)

    def _write(self, statement: str, rows: Sequence[Sequence[int]]) -> None:
        if self._path is None or not rows:
            return
        try:
            with self._connect() as connection:
                connection.executemany(statement, rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _read(self) -> Iterator[NDArray[np.int64]]:
        """All rows, each behind its number in the file, oldest first, in blocks."""
        if self._path is None:
            return
        cursor = self._connect().execute("SELECT rowid, * FROM facts")
        # Every column takes a byte and more. A file in which the same page stands in several places has rows without end.
        left = self._path.stat().st_size // self._columns
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            left -= len(rows)
            if left < 0:
                raise sqlite3.DataError("it has more rows than fit into it")
            try:
                yield np.array(rows, dtype=np.int64)
            except (TypeError, ValueError, OverflowError):
                raise sqlite3.DataError("it holds what is no number") from None

    def _verify(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are as they were written, and possible. SQLite itself does not notice a flipped bit in a number."""
        values = rows[:, 2 + self._stamps : -1]
        is_possible = np.all((values >= self._bounds[:, 0]) & (values <= self._bounds[:, 1]), axis=1)
        is_good: NDArray[np.bool_] = is_possible & (_hash(rows[:, 1:-1]) == rows[:, -1])
        return is_good

    def _connect(self) -> sqlite3.Connection:
        assert self._path is not None
        if self._connection is None:
            _refuse_odd_files(self._path)
            self._connection = connection = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
            connection.text_factory = bytes
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 16)
            connection.execute("PRAGMA trusted_schema = OFF")
            # A power failure may damage the file, which is noticed; waiting for the disk at every chunk would take minutes.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(self._schema.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            # Nothing else: no view that never ends, no trigger.
            found = connection.execute("SELECT name, sql FROM sqlite_schema").fetchmany(2)
            if found != [(b"facts", self._schema.encode())]:
                raise sqlite3.DataError("it is another kind of file")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _give_up(self, error: sqlite3.Error | OSError) -> None:
        """Go on with a new file where this one is damaged, else without any."""
        self._close()
        path = self._path
        assert path is not None
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in _TROUBLES:
            _log.warning("The scan's index %s is damaged (%s) and made anew.", path, error)
            try:
                for suffix in _SQLITE_FILES:
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
                return
            except OSError as again:
                error = again
        self._path = None
        _log.warning("The scan's results cannot be kept in %s (%s); the next scan starts anew.", path, error)


def _hash(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return hash_words(*rows.T).view(np.int64)


def _refuse_odd_files(path: Path) -> None:
    """Raises `sqlite3.DataError` for what must not be opened as a database, or as the journal that a killed scan left."""
    for suffix in _SQLITE_FILES:
        try:
            mode = os.lstat(f"{path}{suffix}").st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            # SQLite would wait at a named pipe, and follow a link.
            raise sqlite3.DataError(f"{path.name}{suffix} is no file")
    if _read_end(Path(f"{path}-journal")) == _JOURNAL_MAGIC:
        # It names a journal of several databases, and SQLite would remove whatever file has that name.
        raise sqlite3.DataError("its journal names another file")


def _read_end(journal: Path) -> bytes:
    try:
        with open_file(journal) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(_JOURNAL_MAGIC)))
            return file.read(len(_JOURNAL_MAGIC))
    except FileError:
        # There is none, or none any more: another scan has just written.
        return b""


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
