"""Reads what `torch.save` wrote, without torch and without executing anything from the file.

    content = read_torch_file("model.pth")
    weight = content["model"]["gpt.mel_head.weight"].read()

Tensors stay in the file until they are read, one at a time, so importing a model of 1.9 GB takes little more memory
than its largest tensor. No file is kept open; a file that changes between two reads is an error.
"""

from __future__ import annotations

import functools
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from myxtts.checkpoints.errors import ModelFileError, UnsafeModelFileError
from myxtts.checkpoints.pickle_machine import GlobalRefusedError, PickleMachine, PickleRefusedError
from myxtts.checkpoints.torch_globals import TORCH_GLOBALS, Storage, StorageType
from myxtts.files import FileError, explain_os_error, open_file

_ZIP_START = b"PK\x03\x04"
_LEGACY_START = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
_PICKLE_START = b"\x80"
_SNIFFED_BYTES = 512

MAX_RECORDS = 65_536
"""A training checkpoint of XTTS v2 has 2,300."""
MAX_DIRECTORY_BYTES = 8 * 2**20
_CHUNK_BYTES = 2**20
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_END = struct.Struct("<4s4H2LH")
_FULL_16 = 0xFFFF
_FULL_32 = 0xFFFFFFFF
_ENCRYPTED_FLAGS = 0x0001 | 0x0040 | 0x2000
_SIZES_FOLLOW_FLAG = 0x0008
_UTF8_FLAG = 0x0800
_NOT_OURS = "It was not written by torch.save."


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
        return Storage(dtype, count, functools.partial(self._zip.read_span, record), self._is_big_endian)


@dataclass(frozen=True)
class Record:
    """One file inside the zip file."""

    name: str
    start: int
    """Where its bytes begin in the zip file."""
    size: int
    crc32: int
    """0 when the writer recorded none: torch has an option that leaves it out."""


class ZipRecords:
    """The records of one file, by name, checked before anything in it is believed. Keeps no file open.

    Stricter than a general zip reader, because only what `torch.save` writes has to pass: records are stored, not compressed (so
    a zip bomb has nothing to blow up), lie one after the other inside the file, and are named once. Both places where zip
    states a record's name and size must agree; where they may differ, two readers can be shown two files.

    Args:
        path: a zip file whose records are stored without compression.
    """

    def __init__(self, path: Path):
        self.path = path
        self._verified: set[str] = set()
        with self._open() as handle:
            status = os.fstat(handle.fileno())
            self._identity = _identify(status)
            self.records = self._read_records(handle, status.st_size)

    def read_record(self, record: Record) -> bytes:
        """All bytes of a record, checked against its checksum."""
        return bytes(self.read_span(record, 0, record.size))

    def read_span(self, record: Record, start: int, length: int) -> bytearray:
        """`length` bytes of a record from byte `start` on. The record's checksum is verified the first time."""
        assert min(start, length) >= 0
        assert start + length <= record.size
        with self._open() as handle:
            if _identify(os.fstat(handle.fileno())) != self._identity:
                raise self._error("was changed while it was being read. Wait until its writer is done, and try again.")
            content = self._read_at(handle, record.start + start, length)
            if record.name not in self._verified and record.crc32 != 0:
                whole = length == record.size
                checksum = zlib.crc32(content) if whole else self._sum_record(handle, record)
                if checksum != record.crc32:
                    raise self._error(f"its record {record.name!r} is damaged (wrong checksum). Get the file again.")
            self._verified.add(record.name)
        return content

    def _sum_record(self, handle: FileIO, record: Record) -> int:
        checksum = 0
        for start in range(0, record.size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, record.size - start)
            checksum = zlib.crc32(self._read_at(handle, record.start + start, length), checksum)
        return checksum

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)

    def _open(self) -> FileIO:
        try:
            return open_file(self.path)
        except FileError as error:
            raise self._error(error.problem) from None

    def _read_at(self, handle: FileIO, offset: int, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        try:
            handle.seek(offset)
            done = 0
            while done < length:
                # Not one readinto: Linux reads at most 2 GiB at once.
                count = handle.readinto(view[done:])
                if not count:
                    raise self._error("ends before its content does: it is cut short. Get the file again.")
                done += count
        except OSError as error:
            raise self._error(f"cannot be read ({error.strerror}).") from None
        return content

    def _read_records(self, handle: FileIO, size: int) -> dict[str, Record]:
        infos, limit = self._read_directory(handle, size)
        records: dict[str, Record] = {}
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            name = info.orig_filename
            self._check_info(info)
            start = self._check_local_header(handle, info, limit)
            # The first begins the file, so that nothing is hidden in front of it.
            if info.header_offset < end or (end == 0 and info.header_offset):
                raise self._error(
                    f"its record {name!r} overlaps the one before it, or is not where it should be. {_NOT_OURS}"
                )
            end = start + info.file_size
            if name.endswith("/"):
                continue
            if name in records:
                raise self._error(f"holds two records named {name!r}. {_NOT_OURS}")
            records[name] = Record(name, start, info.file_size, info.CRC)
        return records

    def _read_directory(self, handle: FileIO, size: int) -> tuple[list[zipfile.ZipInfo], int]:
        """The entries of the zip directory, and where it begins."""
        if size < _END.size:
            raise self._error("is cut short: it is too small for a zip file. Get the file again.")
        signature, *_, count, _, _, comment = _END.unpack(self._read_at(handle, size - _END.size, _END.size))
        if signature != b"PK\x05\x06" or comment != 0:
            raise self._error("is cut short or damaged: the zip directory at its end is missing. Get the file again.")
        try:
            archive = zipfile.ZipFile(cast(BinaryIO, _BoundedFile(handle)))
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            raise self._error(f"is damaged: its zip directory cannot be read ({error}). Get the file again.") from None
        infos = archive.infolist()
        if len(infos) > MAX_RECORDS:
            raise self._error(f"holds {len(infos)} records; model files have at most {MAX_RECORDS}.")
        if count not in (len(infos), _FULL_16):
            raise self._error(f"is damaged: its zip directory has {len(infos)} entries, but says {count}.")
        return infos, archive.start_dir

    def _check_info(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        if info.flag_bits & _ENCRYPTED_FLAGS:
            raise self._error(f"its record {name!r} is encrypted. Model files are not: get the file again.")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise self._error(
                f"its record {name!r} is compressed, which torch.save never does. Unpack the file with `unzip` and "
                "pack it again without compression (`zip -0 -r`)."
            )
        parts = name.removesuffix("/").split("/")
        if parts[0][1:] == ":" or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
            raise self._error(
                f"its record {name!r} has a name that points outside the file. It may be made to do harm."
            )

    def _check_local_header(self, handle: FileIO, info: zipfile.ZipInfo, limit: int) -> int:
        """Where the record's bytes begin, once the header in front of them agrees with the directory."""
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_FLAG else "cp437")
        if not 0 <= info.header_offset <= limit - _LOCAL_HEADER.size - len(name):
            raise self._error(f"its record {name!r} lies outside the file. Get the file again.")
        header = self._read_at(handle, info.header_offset, _LOCAL_HEADER.size + len(name))
        signature, _, flags, method, _, _, crc32, stored, size, name_length, extra_length = _LOCAL_HEADER.unpack_from(
            header
        )
        found = (signature, flags, method, name_length, bytes(header[_LOCAL_HEADER.size :]))
        if found != (b"PK\x03\x04", info.flag_bits, zipfile.ZIP_STORED, len(name), name):
            raise self._error(f"its record {name!r} is described in two ways. Get the file again.")
        sizes_agree = crc32 == info.CRC and {stored, size} <= {info.file_size, _FULL_32}
        if not flags & _SIZES_FOLLOW_FLAG and not sizes_agree:
            raise self._error(f"its record {name!r} has two sizes. Get the file again.")
        start: int = info.header_offset + len(header) + extra_length
        if start + info.file_size > limit:
            raise self._error(f"its record {name!r} is longer than the file. Get the file again.")
        return start


class _BoundedFile:
    """A file from which no more is read at once than the directory of a model file has."""

    def __init__(self, file: FileIO):
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, length: int = -1) -> bytes:
        if length > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"{length} bytes; model files have at most {MAX_DIRECTORY_BYTES}")
        return self._file.read(length if length >= 0 else MAX_DIRECTORY_BYTES)


def _identify(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
