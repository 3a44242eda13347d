"""Reads what `torch.save` wrote, without torch and without executing anything from the file, and writes what `torch.load` reads.

Tensors stay in the file until they are read, one at a time. No file is kept open; a file that changes between two reads is an
error. What is written is within the same limits, again one tensor at a time, and equal content gives equal bytes.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import pickle  # only for the names of its opcodes
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from myxtts.checkpoints.tensors import LazyTensor, Tensor, read_bytes
from myxtts.checkpoints.unpickling import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    STORAGE_DTYPES,
    UNTYPED_DTYPES,
    PickleMachine,
    Storage,
)
from myxtts.errors import CheckpointError, ModelFileError
from myxtts.files import open_file

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
_ODD_NAME = re.compile(r"(^|/)\.{0,2}/|^\.{0,2}$|/\.{1,2}$|^.:|[\\\0]")
_NOT_OURS = "It was not written by torch.save."


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """The value saved in a file: plain Python data, with a `LazyTensor` for every tensor.

    Configuration objects of Coqui come back as mappings of their attributes. Any other class or function in the file
    is refused with `UnsafeModelFileError`; a file that is damaged or no torch file at all, with `ModelFileError`.
    """
    path = Path(path)
    records = ZipRecords(path)
    found = [
        name.removesuffix("/data.pkl")
        for name in records.records
        if name.count("/") == 1 and name.endswith("/data.pkl")
    ]
    if len(found) != 1:
        raise ModelFileError(
            path, "is a zip file, but torch.save did not write it: it has no single `data.pkl`. Give a .pth file."
        )
    # The folder that all records are in; torch names it after the file.
    prefix = found[0]
    if f"{prefix}/constants.pkl" in records.records:
        raise ModelFileError(path, "is a TorchScript program, not a file of weights. Give the model's own .pth file.")
    if f"{prefix}/byteorder" in records.records and records.read_record(f"{prefix}/byteorder") != b"little":
        raise ModelFileError(path, "states a byte order that is not little. Save it again on a machine like this one.")

    def load_storage(persistent_id: Any) -> Storage:
        match persistent_id:
            case ("storage", np.dtype() as dtype, str(key), str(), int(count)) if count >= 0:
                pass
            case _:
                raise ValueError("it describes a storage in an unknown way")
        record = records.records.get(f"{prefix}/data/{key}")
        if record is None:
            raise ValueError(f"it lacks the record data/{key[:80]} that its tensors are in")
        if count * dtype.itemsize > record.file_size:
            raise ValueError(
                f"its record data/{key} has {record.file_size} bytes, fewer than the {count} elements it should hold"
            )
        return Storage(dtype, count * dtype.itemsize, functools.partial(records.read_span, record.orig_filename))

    return PickleMachine(path, records.read_record(f"{prefix}/data.pkl"), load_storage).run()


class ZipRecords:
    """The records of one file, by name, checked before anything in it is believed. Keeps no file open.

    The standard library reads the directory. Beyond what it asks, because only what `torch.save` writes has to pass: records are
    stored, not compressed (so a zip bomb has nothing to blow up), lie one after the other inside the file, and are named once.
    Both places where zip states a record's name and size must agree; where they may differ, two readers can be shown two files.
    """

    def __init__(self, path: Path):
        self.path = path
        self._verified: set[str] = set()
        self.records: dict[str, zipfile.ZipInfo] = {}
        self.starts: dict[str, int] = {}
        """Where the bytes of each begin."""
        with open_file(path) as handle:
            status = os.fstat(handle.fileno())
            self._identity = _identify(status)
            start = self._read_at(handle, 0, min(_SNIFFED_BYTES, status.st_size))
            if not start.startswith(_ZIP_START):
                raise self._error(_describe_start(start, status.st_size))
            self._read_records(handle, status.st_size)

    def read_record(self, name: str) -> bytes:
        """All bytes of a record, checked against its checksum."""
        return bytes(self.read_span(name, 0, self.records[name].file_size))

    def read_span(self, name: str, start: int, length: int) -> bytearray:
        """`length` bytes of a record from byte `start` on. The record's checksum is verified the first time."""
        record = self.records[name]
        with open_file(self.path) as handle:
            if _identify(os.fstat(handle.fileno())) != self._identity:
                raise self._error("was changed while it was being read. Wait until its writer is done, and try again.")
            # A checksum of 0 is none: torch has an option that leaves it out.
            if name not in self._verified and record.CRC != 0:
                checksum = 0
                for offset in range(0, record.file_size, _CHUNK_BYTES):
                    chunk_bytes = min(_CHUNK_BYTES, record.file_size - offset)
                    checksum = zlib.crc32(self._read_at(handle, self.starts[name] + offset, chunk_bytes), checksum)
                if checksum != record.CRC:
                    raise self._error(f"its record {name!r} is damaged (wrong checksum). Get the file again.")
            self._verified.add(name)
            return self._read_at(handle, self.starts[name] + start, length)

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)

    def _read_at(self, handle: FileIO, offset: int, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        try:
            handle.seek(offset)
            while view:
                # Not one readinto: Linux reads at most 2 GiB at once.
                count = handle.readinto(view)
                if not count:
                    raise self._error("ends before its content does: it is cut short. Get the file again.")
                view = view[count:]
        except OSError as error:
            raise self._error(f"cannot be read ({error.strerror}).") from None
        return content

    def _read_records(self, handle: FileIO, size: int) -> None:
        infos, limit = self._read_directory(handle, size)
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            name = info.orig_filename
            is_stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
            if info.flag_bits & _ENCRYPTED_FLAGS or not is_stored:
                raise self._error(
                    f"its record {name!r} is compressed or encrypted, which torch.save never does. Unpack the file with `unzip` "
                    "and pack it again without compression (`zip -0 -r`)."
                )
            if _ODD_NAME.search(name):
                raise self._error(
                    f"its record {name!r} has a name that points outside the file. It may be made to do harm."
                )
            # The first begins the file, so that nothing is hidden in front of it.
            if info.header_offset < end or (end == 0 and info.header_offset):
                raise self._error(
                    f"its record {name!r} overlaps the one before it, or is not where it should be. {_NOT_OURS}"
                )
            if name in self.records:
                raise self._error(f"holds two records named {name!r}. {_NOT_OURS}")
            start = self._find_content(handle, info)
            end = start + info.file_size
            if end > limit:
                raise self._error(f"its record {name!r} is longer than the file. Get the file again.")
            self.records[name], self.starts[name] = info, start

    def _read_directory(self, handle: FileIO, size: int) -> tuple[list[zipfile.ZipInfo], int]:
        """The entries of the zip directory, and where it begins."""
        end = self._read_at(handle, max(0, size - _END.size), min(size, _END.size))
        signature, *_, count, _, _, comment = _END.unpack(end.rjust(_END.size))
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

    def _find_content(self, handle: FileIO, info: zipfile.ZipInfo) -> int:
        """Where the record's bytes begin, once the header in front of them agrees with the directory."""
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_FLAG else "cp437")
        header = self._read_at(handle, info.header_offset, _LOCAL_HEADER.size + len(name))
        signature, _, flags, method, _, _, crc32, stored, size, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(
            header
        )
        found = (signature, flags, method, name_bytes, bytes(header[_LOCAL_HEADER.size :]))
        sizes_agree = crc32 == info.CRC and {stored, size} <= {info.file_size, _FULL_32}
        if found != (_ZIP_START, info.flag_bits, zipfile.ZIP_STORED, len(name), name) or not (
            flags & _SIZES_FOLLOW_FLAG or sizes_agree
        ):
            raise self._error(f"its record {name!r} is described in two ways. Get the file again.")
        return info.header_offset + len(header) + int(extra_bytes)


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


def _describe_start(start: bytearray, size: int) -> str:
    """What a file that is no torch file is instead, told by its first bytes."""
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


ALIGNMENT = 64
"""Storages begin at multiples of this many bytes, so that torch can map them into memory."""

_PREFIX = "archive"
_PADDING_FIELD = 0x4246
_ZIP64_FIELD_BYTES = 20
_ZIP64_FROM_BYTES = 2**30
"""Records from here on get 64-bit sizes; well below 2 GiB, where zipfile would switch by itself."""


def _dump_global(name: str) -> bytes:
    return pickle.GLOBAL + name.replace(":", "\n").encode() + b"\n"


_TORCH_TYPES = {
    dtype: (f"torch:{name}", "torch._utils:_rebuild_tensor_v2", b"") for name, dtype in STORAGE_DTYPES.items()
} | {
    dtype: ("torch.storage:UntypedStorage", "torch._utils:_rebuild_tensor_v3", _dump_global(f"torch:{name}"))
    for name, dtype in UNTYPED_DTYPES.items()
}
"""Type of elements -> torch's names of their storage and of what makes a tensor of it, and what that must be told besides."""


def write_torch(handle: BinaryIO, content: Any, path: Path) -> None:
    """Writes a value into an open file that can be sought; `path` is for messages.

    Dictionaries (keys: text or whole numbers), lists, tuples, text, numbers, None, and tensors: NumPy arrays or `LazyTensor`s.
    A tensor that stands in several places is stored once.
    """
    tensors: dict[int, tuple[int, Tensor]] = {}
    try:
        program = pickle.PROTO + b"\x02" + _dump(content, tensors) + pickle.STOP
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        _add_record(archive, handle, "data.pkl", program)
        _add_record(archive, handle, "byteorder", b"little")
        for key, tensor in tensors.values():
            _add_record(archive, handle, f"data/{key}", read_bytes(tensor))
        _add_record(archive, handle, "version", b"3\n")


def _add_record(archive: zipfile.ZipFile, handle: BinaryIO, name: str, content: bytes | memoryview) -> None:
    # With the date that ZipInfo has by default, 1980: the time of writing would make equal files differ.
    info = zipfile.ZipInfo(f"{_PREFIX}/{name}")
    is_large = len(content) >= _ZIP64_FROM_BYTES
    header_bytes = _LOCAL_HEADER.size + len(info.filename) + 4 + (_ZIP64_FIELD_BYTES if is_large else 0)
    padding = -(handle.tell() + header_bytes) % ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + b"Z" * padding
    info.file_size = len(content)
    with archive.open(info, "w", force_zip64=is_large) as record:
        record.write(content)


def _dump(value: Any, tensors: dict[int, tuple[int, Tensor]], depth: int = 0) -> bytes:
    """A value in a pickle of protocol 2. Its tensors are collected by identity, with the numbers of their storages."""

    def dump_group(values: Iterable[Any]) -> bytes:
        return pickle.MARK + b"".join(_dump(each, tensors, depth + 1) for each in values)

    if depth > MAX_DEPTH:
        raise ValueError(f"the content is nested more than {MAX_DEPTH} deep, or contains itself.")
    match value:
        case None | bool():
            return {None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value]
        case int() if -(2**63) <= value < 2**64:
            return pickle.LONG1 + b"\x09" + value.to_bytes(9, "little", signed=True)
        case float():
            return pickle.BINFLOAT + struct.pack(">d", value)
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            if raw != value.encode("utf-8", "replace"):
                raise ValueError(f"the text {value!r} holds half a character and cannot be written.")
            if len(raw) > MAX_TEXT_BYTES:
                raise ValueError(f"a text of {len(raw)} bytes is longer than {MAX_TEXT_BYTES}.")
            return pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw
        case list():
            return pickle.EMPTY_LIST + dump_group(value) + pickle.APPENDS
        case tuple():
            return dump_group(value) + pickle.TUPLE
        case dict() if all(type(key) in (str, int) for key in value):
            return pickle.EMPTY_DICT + dump_group(itertools.chain.from_iterable(value.items())) + pickle.SETITEMS
        case np.ndarray() | LazyTensor():
            return _dump_tensor(value, tensors)
    raise ValueError(
        f"{value!r:.80} ({type(value).__name__}) cannot be written: only text, numbers of 64 bits, tensors, and lists and tables "
        "of them. Convert it."
    )


def _dump_tensor(tensor: Tensor, tensors: dict[int, tuple[int, Tensor]]) -> bytes:
    if tensor.dtype.newbyteorder("=") not in _TORCH_TYPES:
        raise ValueError(f"torch has no tensors of type {tensor.dtype}. Convert the array first.")
    storage, function, dtype = _TORCH_TYPES[tensor.dtype.newbyteorder("=")]
    key, _ = tensors.setdefault(id(tensor), (len(tensors), tensor))
    strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
    described = (0, tuple(tensor.shape), strides, False)
    return b"".join(
        [
            _dump_global(function) + pickle.MARK,
            pickle.MARK + _dump("storage", tensors) + _dump_global(storage),
            *(_dump(each, tensors) for each in (str(key), "cpu", tensor.nbytes if dtype else tensor.size)),
            pickle.TUPLE + pickle.BINPERSID,
            *(_dump(each, tensors) for each in described),
            _dump_global("collections:OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE + dtype,
            pickle.TUPLE + pickle.REDUCE,
        ]
    )
