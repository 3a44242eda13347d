"""Folders of a cache: one per key, with the key in readable form in it.

    features/
        dvae_codes-5f0c1a2b3c4d5e6f/
            key.json
            <segment>.data, <segment>.index

A folder stays until somebody removes it by hand, while nothing runs.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.data.cache.errors import CacheFolderError, CacheKeyError
from myxtts.data.cache.key import GenerationKey, encode_key
from myxtts.data.cache.records import ENTRY
from myxtts.data.cache.segment import INDEX_SUFFIX
from myxtts.files import FileError, read_json

KEY_NAME = "key.json"
_TEMPORARY_SUFFIX = ".tmp"


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


def open_generation(directory: Path, key: GenerationKey) -> Path:
    """The folder of a key, made if need be.

    Raises:
        CacheFolderError: the folder cannot be made.
        CacheKeyError: the folder holds another key.
    """
    folder = directory / key.folder_name
    try:
        _ensure_key(folder, key)
    except OSError as error:
        raise CacheFolderError(
            f"{folder}: the folder for prepared features cannot be used ({error.strerror}). Give another directory, or run with "
            "--cache memory or --cache off."
        ) from error
    return folder


def list_generations(directory: Path) -> list[Generation]:
    """All generations of a cache, the one written last first."""
    try:
        folders = [entry for entry in directory.iterdir() if (entry / KEY_NAME).is_file()]
    except FileNotFoundError:
        return []
    return sorted(map(_read_generation, folders), key=lambda found: found.last_written, reverse=True)


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
        return read_json(path, dict)
    except FileError:
        return None


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
