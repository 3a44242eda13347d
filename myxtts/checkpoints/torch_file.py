"""Reads what `torch.save` wrote, without torch and without executing anything from the file.

    content = read_torch_file("model.pth")
    weight = content["model"]["gpt.mel_head.weight"].read()

Tensors stay in the file until they are read, one at a time, so importing a model of 1.9 GB takes little more memory
than its largest tensor. No file is kept open; a file that changes between two reads is an error.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from myxtts.checkpoints.errors import ModelFileError, UnsafeModelFileError
from myxtts.checkpoints.pickle_machine import GlobalRefusedError, PickleMachine, PickleRefusedError
from myxtts.checkpoints.torch_globals import TORCH_GLOBALS, Storage, StorageType
from myxtts.checkpoints.zip_records import Record, ZipRecords
from myxtts.files import FileError, explain_os_error, open_file

_ZIP_START = b"PK\x03\x04"
_LEGACY_START = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
_PICKLE_START = b"\x80"
_SNIFFED_BYTES = 512


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """The value saved in a file: plain Python data, with a `LazyTensor` for every tensor.

    Configuration objects of Coqui come back as mappings of their attributes. Any other class or function in the file
    is refused with `UnsafeModelFileError`; a file that is damaged or no torch file at all, with `ModelFileError`.
    """
    path = Path(path)
    _check_start(path)
    return TorchArchive(path).read_content()


class TorchArchive:
    """The records of a torch file: one pickle, and the storages of its tensors."""

    def __init__(self, path: Path):
        self.path = path
        self._zip = ZipRecords(path)
        self._prefix = self._find_prefix()
        self._is_big_endian = self._read_byte_order() == b"big"

    def read_content(self) -> Any:
        """The value the pickle describes."""
        program = self._zip.read_record(self._zip.records[f"{self._prefix}/data.pkl"])
        try:
            return PickleMachine(program, TORCH_GLOBALS, self._load_storage).run()
        except GlobalRefusedError as error:
            raise UnsafeModelFileError(self.path, error.global_name) from None
        except PickleRefusedError as error:
            raise ModelFileError(self.path, str(error)) from None

    def _find_prefix(self) -> str:
        """The folder that all records are in; torch names it after the file."""
        records = self._zip.records
        found = [
            name.removesuffix("/data.pkl") for name in records if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(found) != 1:
            raise ModelFileError(
                self.path,
                "is a zip file, but torch.save did not write it: it has no single `data.pkl`. Give a .pth file.",
            )
        prefix = found[0]
        if f"{prefix}/constants.pkl" in records:
            raise ModelFileError(
                self.path, "is a TorchScript program, not a file of weights. Give the model's own .pth file."
            )
        return prefix

    def _read_byte_order(self) -> bytes:
        record = self._zip.records.get(f"{self._prefix}/byteorder")
        if record is None:
            return b"little"
        order = self._zip.read_record(record) if record.size <= 16 else b""
        if order not in (b"little", b"big"):
            raise ModelFileError(self.path, "states a byte order that is neither little nor big. Get the file again.")
        return order

    def _load_storage(self, persistent_id: Any) -> Storage:
        match persistent_id:
            case ("storage", StorageType(dtype=dtype), str(key), str(), int(count)) if count >= 0:
                pass
            case _:
                raise PickleRefusedError("describes a storage in an unknown way. It is damaged, or made to do harm.")
        record = self._zip.records.get(f"{self._prefix}/data/{key}")
        if record is None:
            raise PickleRefusedError(f"lacks the record data/{key[:80]} that its tensors are in. Get the file again.")
        if count * (dtype.itemsize if dtype else 1) > record.size:
            raise PickleRefusedError(
                f"has {record.size} bytes in its record data/{key}, fewer than the {count} elements it should hold. "
                "Get the file again."
            )
        return Storage(dtype, count, functools.partial(self._fetch, record), self._is_big_endian)

    def _fetch(self, record: Record, start: int, length: int) -> bytearray:
        return self._zip.read_span(record, start, length)


def _check_start(path: Path) -> None:
    """Tells by its first bytes what a file that is no torch file is instead."""
    if os.path.isdir(path):
        raise ModelFileError(path, "is a folder. Give the .pth file in it.")
    try:
        with open_file(path) as handle:
            start = handle.read(_SNIFFED_BYTES)
            size = os.fstat(handle.fileno()).st_size
    except (FileError, OSError) as error:
        raise ModelFileError(
            path, f"{explain_os_error(path, error).problem} Give a .pth file that can be read."
        ) from None
    if not start.startswith(_ZIP_START):
        raise ModelFileError(path, _describe_start(start, size))


def _describe_start(start: bytes, size: int) -> str:
    convert = "On a machine with torch, load it with `torch.load(..., weights_only=True)` and save it again with `torch.save`."
    if not start:
        return "is empty. Get the file again."
    if start.startswith(_LEGACY_START) or start[257:262] == b"ustar":
        return f"is in the old form of torch before 1.6, which is not read here. {convert}"
    if start.startswith(_PICKLE_START):
        return f"is a bare pickle, not a file of torch.save. {convert}"
    if start[8:9] == b"{" and 0 < int.from_bytes(start[:8], "little") <= size - 8:
        return "is a safetensors file, not a .pth file. Give the directory it is in, or the .pth file it was made from."
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself. Fetch the file with `git lfs pull`."
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model file. The download failed: get the file again."
    return "is not a file of torch.save: it does not begin like a zip file. Give a .pth file."
