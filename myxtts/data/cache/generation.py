"""Folders of a cache: one per key, with the key in readable form in it.

    features/
        dvae_codes-5f0c1a2b3c4d5e6f/
            key.json
            <segment>.data, <segment>.index

Whoever uses a generation holds a shared lock on its folder, which ends with the process; one that can be locked
exclusively is used by nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.data.cache.errors import CacheFolderError, CacheInUseError, CacheKeyError
from myxtts.data.cache.key import GenerationKey, encode_key
from myxtts.data.cache.records import ENTRY
from myxtts.data.cache.segment import DATA_SUFFIX, INDEX_SUFFIX

KEY_NAME = "key.json"
_ATTEMPTS = 16
_TEMPORARY_SUFFIX = ".tmp"
# In this order: a segment without index is empty, and the key goes last, so that a half removed folder is still one.
_REMOVED_PATTERNS = (f"*{INDEX_SUFFIX}", f"*{DATA_SUFFIX}", f"*{_TEMPORARY_SUFFIX}", KEY_NAME)


@dataclass(frozen=True)
class Generation:
    """Features of one key, as found on disk."""

    folder: Path
    key: dict[str, Any]
    """As written in `key.json`."""
    size_bytes: int
    records: int
    """Copies counted apiece, so that there may be more records than clips."""
    last_written: float
    """Seconds since 1970."""


def open_generation(directory: Path, key: GenerationKey) -> tuple[Path, int]:
    """The folder of a key, made if need be, and an open descriptor that keeps it from being removed.

    Raises:
        CacheFolderError: the folder cannot be made.
        CacheKeyError: the folder holds another key.
    """
    folder = directory / key.folder_name
    for attempt in range(_ATTEMPTS):
        try:
            _ensure_key(folder, key)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                # Another process removed the folder between two steps.
                continue
            raise CacheFolderError(
                f"{folder}: the folder for prepared features cannot be used ({error.strerror}). Give another directory, or "
                "run with --cache memory or --cache off."
            ) from error
        # Waits only while another process is removing this generation.
        _lock(descriptor, fcntl.LOCK_SH)
        if _is_same_folder(descriptor, folder):
            return folder, descriptor
        os.close(descriptor)
    raise CacheFolderError(f"{folder}: is removed by other processes as often as it is made. Stop them.")


def list_generations(directory: Path) -> list[Generation]:
    """All generations of a cache, the one written last first."""
    try:
        folders = [entry for entry in directory.iterdir() if (entry / KEY_NAME).is_file()]
    except FileNotFoundError:
        return []
    return sorted(map(_read_generation, folders), key=lambda found: found.last_written, reverse=True)


def remove_generation(generation: Generation) -> None:
    """Deletes a generation's files and its folder.

    Raises:
        CacheInUseError: a running process uses it; nothing is deleted.
        CacheFolderError: a file cannot be deleted, or files of others are in the folder.
    """
    descriptor = os.open(generation.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            raise CacheInUseError(
                f"{generation.folder}: a running process uses these features. Stop it first, or remove others."
            )
        for pattern in _REMOVED_PATTERNS:
            for path in generation.folder.glob(pattern):
                path.unlink(missing_ok=True)
        generation.folder.rmdir()
    except OSError as error:
        raise CacheFolderError(
            f"{generation.folder}: cannot be removed as a whole ({error.strerror}). Look for files that are not of the cache."
        ) from error
    finally:
        os.close(descriptor)


def _ensure_key(folder: Path, key: GenerationKey) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEY_NAME
    found = _read_key(path)
    if found is None:
        # Not written yet, or damaged: the folder's name still says what it holds.
        with _replace_file(path) as temporary:
            temporary.write_text(json.dumps(key.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    elif encode_key(found) != encode_key(key.to_dict()):
        raise CacheKeyError(
            f"{path}: must hold the key that the folder is named after, but holds another one: the folder was filled by "
            "hand. Remove the folder; its features are then prepared anew."
        )


@contextlib.contextmanager
def _replace_file(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_key(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read_generation(folder: Path) -> Generation:
    size_bytes, index_bytes, last_written = 0, 0, 0.0
    for path in folder.iterdir():
        # A file may go while we look: a compaction removes segments.
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            size_bytes += status.st_size
            index_bytes += status.st_size if path.suffix == INDEX_SUFFIX else 0
            last_written = max(last_written, status.st_mtime)
    key = _read_key(folder / KEY_NAME) or {}
    return Generation(folder, key, size_bytes, index_bytes // ENTRY.itemsize, last_written)


def _lock(descriptor: int, operation: int) -> bool:
    """False when another process is in the way. Where a file system knows no locks, nobody ever is."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_same_folder(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False
