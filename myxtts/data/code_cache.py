"""Codes of clips, made once: all of them in memory, and with a folder also in files that other runs find.

In `codes/5f0c1a2b3c4d5e6f/`, a digest of what codes depend on besides their clips, `key.json` says that in words, and files such as
`codes-128-9f86d081....npz`, kept as those of `index` are, hold those of so many clips. A thousand hours of speech are 155 MB. Whether
codes are kept, and where, `pipeline/codes.py` decides."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.index import read_named, write_named
from myxtts.devices.machine import read_free_memory_bytes
from myxtts.errors import MachineError
from myxtts.files import FileError, WriteError, open_file_atomically, read_json, recover_folder

_log = logging.getLogger(__name__)

Codes = NDArray[np.int16]
"""Of one clip."""
ClipIds = NDArray[np.uint64]
"""Two words per clip, in rows. The ids of some clips by number are `ids[numbers]`."""
CodeKey = Mapping[str, str]
"""What codes depend on besides their clips, in words. Codes of different keys are never mixed up."""

DTYPE = np.dtype("<i2")
SAVE_EVERY_S = 60.0
DISK_RESERVE_BYTES = 512 * 2**20
"""Left free on the disk: codes must not be the reason why a checkpoint cannot be written."""
MEMORY_SHARE = 0.5
"""Of the free memory that codes may take. The rest is for what the run has yet to allocate."""

_KEY_NAME = "key.json"
_FILE_NAME = re.compile(r"codes-([0-9]{1,12})-[0-9a-f]{32}\.npz")
_FILE_BYTES = 1 << 30
_ENTRY_BYTES = 300
"""That Python needs to find the codes of a clip, beside them."""
_TYPES = {"ids": np.dtype("<u8"), "lengths": np.dtype("<i4"), "codes": DTYPE}


@dataclass(frozen=True)
class KeptCodes:
    """Codes of one key, as found on disk."""

    folder: Path
    key: CodeKey
    clips: int
    """Copies counted apiece."""


def identify_files(
    paths: Iterable[bytes | bytearray], size_bytes: NDArray[np.int64], mtime_ns: NDArray[np.int64]
) -> ClipIds:
    """Ids that change when a file is replaced or renamed, and stay when the whole corpus moves.

    Two corpora may hold files of equal name, size and time (archives often set one time for all): with these ids each
    corpus needs a folder of its own."""
    stamps = np.stack([size_bytes, mtime_ns], axis=1).astype("<i8").tobytes()
    contents = (path + stamps[16 * row : 16 * row + 16] for row, path in enumerate(paths))
    blob = b"".join(hashlib.blake2b(content, digest_size=16, person=b"file").digest() for content in contents)
    ids = np.frombuffer(blob, dtype="<u8").reshape(-1, 2)
    assert len(ids) == len(size_bytes) == len(mtime_ns), (len(ids), len(size_bytes), len(mtime_ns))
    return ids


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """A digest of named arrays, whatever their order."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        # With their lengths in front, so that no two different sets are the same bytes.
        for part in (name.encode(), f"{array.dtype.str}{array.shape}".encode(), array.tobytes()):
            total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def find_key_folder(directory: Path, key: CodeKey) -> Path:
    return directory / hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]


def list_kept_codes(directory: Path) -> list[KeptCodes]:
    kept: list[KeptCodes] = []
    for folder in sorted(path.parent for path in directory.glob(f"*/{_KEY_NAME}")):
        names = [_FILE_NAME.fullmatch(path.name) for path in folder.iterdir()]
        kept.append(KeptCodes(folder, _read_key(folder) or {}, sum(int(name[1]) for name in names if name)))
    return kept


def read_free_disk_bytes(folder: Path) -> int:
    """Space a user may write below a folder, which need not exist yet, without what stays reserved."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return 0
    status = os.statvfs(existing)
    return max(0, status.f_bavail * status.f_frsize - DISK_RESERVE_BYTES)


class CodeCache:
    """Codes by clip id. For use in one thread.

    What cannot be written (a full disk) stays in memory and is tried again later; what does not fit into memory is not kept.
    A cache never ends a run.

    Args:
        directory: of the codes of all keys; None keeps them in memory only.
    """

    def __init__(self, directory: Path | None, key: CodeKey):
        self.hits = self.misses = 0
        self.write_problem: str | None = None
        """Why what was given last is not on the disk, where it should be."""
        self._folder = None if directory is None else _open_folder(directory, key)
        self._room_bytes = int(read_free_memory_bytes() * MEMORY_SHARE)
        self._is_full = False
        self._codes: dict[bytes, Codes] = {}
        self._unsaved: list[bytes] = []
        self._saved_at = time.monotonic()
        if self._folder is not None:
            recover_folder(self._folder)
        for path in sorted(self._folder.iterdir()) if self._folder else ():
            if _FILE_NAME.fullmatch(path.name):
                part = _read_file(path)
                if part is None:
                    _log.warning("%s is damaged: the codes in it are made anew. It can be removed.", path)
                else:
                    ids, lengths, codes = part
                    self._codes.update(zip(map(bytes, ids), np.split(codes, np.cumsum(lengths)[:-1]), strict=True))

    def __enter__(self) -> CodeCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.save()

    def __len__(self) -> int:
        return len(self._codes)

    def has(self, ids: ClipIds, clip: int) -> bool:
        """Whether the codes of one of many clips are there, and so will always be. Does not count as a hit."""
        return bytes(ids[clip]) in self._codes

    def get_many(self, ids: ClipIds) -> list[Codes | None]:
        """The codes of each clip, read-only, or None where they are not there."""
        found = [self._codes.get(bytes(clip)) for clip in ids]
        hits = sum(codes is not None for codes in found)
        self.hits, self.misses = self.hits + hits, self.misses + len(found) - hits
        return found

    def put_many(self, ids: ClipIds, codes: Sequence[NDArray[np.integer[Any]]]) -> None:
        """Keeps codes of clips that are not there yet; on the disk from time to time."""
        for clip, own in zip(map(bytes, ids), codes, strict=True):
            if clip in self._codes:
                continue
            kept = own.astype(DTYPE)
            kept.flags.writeable = False
            self._room_bytes -= kept.nbytes + _ENTRY_BYTES
            if self._room_bytes >= 0:
                self._codes[clip] = kept
                self._unsaved.append(clip)
            elif not self._is_full:
                self._is_full = True
                _log.info(
                    "No memory is left for more codes than those of %d clips. Others are made every time.", len(self)
                )
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Writes what is new to the disk, if there is a folder. May be called at any time."""
        self._saved_at = time.monotonic()
        if self._folder is None or not self._unsaved:
            return
        new = [self._codes[clip] for clip in self._unsaved]
        ids = np.frombuffer(b"".join(self._unsaved), "<u8").reshape(-1, 2)
        lengths, codes = np.array(list(map(len, new)), "<i4"), np.concatenate(new)
        content = io.BytesIO()
        np.savez(content, ids=ids, lengths=lengths, codes=codes)
        try:
            if read_free_disk_bytes(self._folder) < content.getbuffer().nbytes:
                raise OSError(f"less than {DISK_RESERVE_BYTES >> 20} MB would be left on the disk")
            write_named(self._folder, f"codes-{len(ids)}", ".npz", content.getbuffer())
        except (OSError, WriteError) as error:
            if self.write_problem is None:
                _log.warning(
                    "%s: codes cannot be written (%s). The run goes on; they are kept in memory.", self._folder, error
                )
            self.write_problem = str(error)
            return
        self.write_problem = None
        self._unsaved.clear()


def _open_folder(directory: Path, key: CodeKey) -> Path:
    folder = find_key_folder(directory, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _read_key(folder) is None:
            # Not written yet, or damaged: the folder's name still says what it holds.
            with open_file_atomically(folder / _KEY_NAME, follows_link=False) as file:
                file.write(json.dumps(dict(key), indent=2, sort_keys=True).encode() + b"\n")
    except (OSError, WriteError) as error:
        reason = error.reason if isinstance(error, WriteError) else error.strerror
        raise MachineError(
            f"{folder}: the folder for codes cannot be used ({reason}). Give another directory, or run with --cache memory or "
            "--cache off."
        ) from error
    return folder


def _read_key(folder: Path) -> dict[str, Any] | None:
    try:
        return read_json(folder / _KEY_NAME, dict)
    except FileError:
        return None


def _read_file(path: Path) -> tuple[ClipIds, NDArray[np.int32], Codes] | None:
    """Ids, numbers of codes, and codes; None if the file is not what its name says."""
    content = read_named(path, _FILE_BYTES)
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                return None
            ids, lengths, codes = (archive[name] for name in _TYPES)
    # A header that claims more than there is may ask for more memory than the machine has.
    except (KeyError, ValueError, EOFError, MemoryError, zipfile.BadZipFile):
        return None
    types, shapes = [ids.dtype, lengths.dtype, codes.dtype], [ids.ndim, lengths.ndim, codes.ndim]
    if types != list(_TYPES.values()) or shapes != [2, 1, 1] or ids.shape != (len(lengths), 2) or not len(ids):
        return None
    is_whole = (lengths >= 0).all() and lengths.sum(dtype=np.int64) == len(codes)
    codes.flags.writeable = False
    return (ids, lengths, codes) if is_whole else None
