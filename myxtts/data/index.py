"""What earlier scans of a corpus found out, kept on disk so that nothing is looked at twice."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.errors import ReadingError
from myxtts.files import FileError, open_file
from myxtts.hashing import digest64

_log = logging.getLogger(__name__)

FOLDER_NAME = ".myxtts"
"""In a corpus, of what was found out about it."""

Rows = NDArray[np.int64]
"""Of a key, its stamps and its values."""

MOST_ROWS = 1024
"""In a block."""

_WAIT_SECONDS = 30.0
"""For another scan that writes just now: a write takes milliseconds."""
_SCHEMA = "CREATE TABLE facts (rows BLOB)"
_DIGEST_BYTES = 8
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

    Rows lie in blocks, each behind a digest: SQLite itself does not notice a flipped bit, and a row on its own would cost a scan
    a third of its time. It never ends a scan. Where it cannot be written, nothing is remembered; one that is damaged is made anew.
    Whoever made a corpus may have put it there, so no value is taken unseen.

    Args:
        path: of the file; must change when rows made earlier are no longer valid. None remembers nothing.
        stamps: numbers in a row beside its key, which say what it holds for.
        bounds: of the values in a row, which follow.
    """

    def __init__(self, path: Path | None, stamps: int, bounds: Sequence[tuple[int, int]]):
        self._path = path
        self._stamps = stamps
        self._bounds = np.array(bounds, dtype=np.int64)
        self._columns = 1 + stamps + len(bounds)
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
        stale: list[tuple[int]] = []
        still_true: list[Rows] = []
        try:
            for number, rows in self._read() if len(keys) else ():
                places = np.minimum(np.searchsorted(distinct, rows[:, 0]), len(distinct) - 1)
                is_asked = distinct[places] == rows[:, 0]
                is_true = np.all(rows[:, 1 : 1 + self._stamps] == stamps[first[places]], axis=1)
                found = is_asked & is_true
                values[places[found]] = rows[found, 1 + self._stamps :]
                known[places[found]] = True
                if np.any(is_asked & ~is_true):
                    stale.append((number,))
                    still_true.append(rows[~is_asked | is_true])
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
            known[:] = False
        else:
            self._write(still_true, instead_of=stale)
        return values[inverse], known[inverse]

    def append(self, rows: Rows) -> None:
        """Remember rows of a key, stamps and values, safely on disk as far as a killed process is concerned."""
        self._write([rows])

    def _write(self, blocks: Sequence[Rows], instead_of: Sequence[tuple[int]] = ()) -> None:
        contents = [
            (_digest(content) + content,)
            for rows in blocks
            for first in range(0, len(rows), MOST_ROWS)
            for content in [rows[first : first + MOST_ROWS].astype("<i8").tobytes()]
        ]
        if self._path is None or not (contents or instead_of):
            return
        try:
            with self._connect() as connection:
                connection.executemany("DELETE FROM facts WHERE rowid = ?", instead_of)
                connection.executemany("INSERT INTO facts VALUES (?)", contents)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _read(self) -> Iterator[tuple[int, Rows]]:
        """All blocks, each behind its number in the file, oldest first."""
        if self._path is None:
            return
        blocks = self._connect().execute("SELECT rowid, rows FROM facts")
        # A file in which the same page stands in several places has blocks without end.
        left = self._path.stat().st_size
        for number, block in blocks:
            if not isinstance(block, bytes) or block[:_DIGEST_BYTES] != _digest(block[_DIGEST_BYTES:]):
                raise sqlite3.DataError("it holds other numbers than were written")
            left -= len(block)
            if left < 0:
                raise sqlite3.DataError("it has more rows than fit into it")
            numbers = np.frombuffer(block, "<i8", offset=_DIGEST_BYTES)
            if len(numbers) % self._columns:
                raise sqlite3.DataError("it holds half a row")
            rows = numbers.reshape(-1, self._columns)
            values = rows[:, 1 + self._stamps :]
            if not np.all((values >= self._bounds[:, 0]) & (values <= self._bounds[:, 1])):
                raise sqlite3.DataError("it holds impossible numbers")
            yield number, rows

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
            connection.execute(_SCHEMA.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            # Nothing else: no view that never ends, no trigger.
            found = connection.execute("SELECT name, sql FROM sqlite_schema").fetchmany(2)
            if found != [(b"facts", _SCHEMA.encode())]:
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


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


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
        probe = folder / f"{secrets.token_hex(8)}.tmp"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
