"""Files of records. Every writer appends to a segment of its own, so writers cannot hurt each other.

A segment is `<name>.data` (the arrays' bytes) and `<name>.index` (the entries about them). Bytes are written before
the entries that name them, so what a killed writer leaves is whole up to the last sound entry. Names sort by age.

A writer holds a lock on its data file. The kernel releases it when the process ends, however it ends, so a segment
that can be locked is nobody's any more. (Where a file system knows no locks, every segment counts as in use.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from myxtts.data.cache.records import ENTRY, Entries, move_entries, seal_entries, unseal_entries
from myxtts.files import MissingFileError, open_file

DATA_SUFFIX = ".data"
INDEX_SUFFIX = ".index"

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_MODE = 0o666


def list_segments(folder: Path) -> list[str]:
    """Names of all segments, oldest first."""
    return sorted(path.stem for path in folder.glob(f"*{DATA_SUFFIX}") if path.is_file())


def remove_segment(folder: Path, name: str) -> None:
    """Deletes a segment. Whoever has it open can go on reading."""
    # A segment without index is empty, so being killed between the two does no harm.
    _find_index(folder, name).unlink(missing_ok=True)
    _find_data(folder, name).unlink(missing_ok=True)


class SegmentReader:
    """A segment that somebody wrote, or still writes."""

    def __init__(self, folder: Path, name: str):
        """Raises `FileNotFoundError` when the segment has been removed meanwhile."""
        self.name = name
        self._descriptor = os.open(_find_data(folder, name), os.O_RDONLY)
        self._index = _find_index(folder, name)
        self._index_bytes = 0

    def load_entries(self) -> tuple[Entries, int]:
        """The sound entries that were added since the last call, and the number of damaged ones."""
        try:
            with open_file(self._index) as file:
                file.seek(self._index_bytes)
                content = file.read()
        except MissingFileError:
            # Just created, or just removed: either way there is nothing to read here.
            content = b""
        # A writer may be half way through its last entry: that one is read next time.
        self._index_bytes += len(content) // ENTRY.itemsize * ENTRY.itemsize
        return unseal_entries(content, os.fstat(self._descriptor).st_size)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Some bytes of the data file; fewer than asked for when it is shorter than it was."""
        return os.pread(self._descriptor, size_bytes, offset)

    def lock(self) -> bool:
        """Whether the writer is gone. If so, the segment is locked until it is closed here."""
        return _lock(self._descriptor) is True

    @property
    def size_bytes(self) -> int:
        """Of both files, as far as they were read."""
        return os.fstat(self._descriptor).st_size + self._index_bytes

    def close(self) -> None:
        """Closes the file and releases the lock, if there is one."""
        os.close(self._descriptor)


class SegmentWriter:
    """A new segment, locked as long as it is open."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.name, self._data = _create_locked_data(folder)
        self._data_bytes = 0
        self._index_bytes = 0
        try:
            self._index = os.open(_find_index(folder, self.name), _CREATE, _MODE)
        except OSError:
            remove_segment(folder, self.name)
            os.close(self._data)
            raise

    def append(self, payloads: bytes, entries: Entries) -> Entries:
        """The entries as they stand in the segment, with places in its data file.

        Args:
            payloads: bytes of all records.
            entries: about these records; their offsets count from the start of `payloads`.

        Raises:
            OSError: the segment is as it was before; nothing of these records remains.
        """
        placed = move_entries(entries, self._data_bytes)
        sealed = seal_entries(placed)
        try:
            _write_all(self._data, payloads, self._data_bytes)
            _write_all(self._index, sealed, self._index_bytes)
        except OSError:
            # Cutting off what was written needs no space, but a failing disk may refuse this too; the torn rest is
            # then ignored by readers.
            with contextlib.suppress(OSError):
                os.ftruncate(self._index, self._index_bytes)
                os.ftruncate(self._data, self._data_bytes)
            raise
        self._data_bytes += len(payloads)
        self._index_bytes += len(sealed)
        return placed

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Some bytes of the data file."""
        return os.pread(self._data, size_bytes, offset)

    @property
    def size_bytes(self) -> int:
        """Of both files."""
        return self._data_bytes + self._index_bytes

    def flush(self) -> None:
        """Returns when all records are on the disk itself."""
        os.fsync(self._data)
        os.fsync(self._index)

    def close(self) -> None:
        """Closes the segment; one without records is removed."""
        if self._index_bytes == 0:
            remove_segment(self._folder, self.name)
        os.close(self._index)
        os.close(self._data)


@contextlib.contextmanager
def hold_dead_segments(folder: Path) -> Iterator[list[SegmentReader]]:
    """The segments whose writers are gone, oldest first, locked for the block."""
    with contextlib.ExitStack() as stack:
        held = []
        for name in list_segments(folder):
            try:
                reader = SegmentReader(folder, name)
            except FileNotFoundError:
                continue
            stack.callback(reader.close)
            # Another process may have removed it between opening and locking.
            if reader.lock() and _find_data(folder, name).exists():
                held.append(reader)
        yield held


def _find_data(folder: Path, name: str) -> Path:
    return folder / f"{name}{DATA_SUFFIX}"


def _find_index(folder: Path, name: str) -> Path:
    return folder / f"{name}{INDEX_SUFFIX}"


def _create_locked_data(folder: Path) -> tuple[str, int]:
    """The name of a new segment, and its open data file."""
    while True:
        name = f"{time.time_ns():016x}-{os.getpid()}-{secrets.token_hex(4)}"
        path = _find_data(folder, name)
        descriptor = os.open(path, _CREATE, _MODE)
        # Between creating and locking, another process may take it for a dead, empty segment and remove it.
        if _lock(descriptor) is not False and path.exists():
            return name, descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """True when the file is now locked, False when another holds the lock, None when there are no locks here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
