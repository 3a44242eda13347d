"""Writes files that `torch.load(..., weights_only=True)` reads, without torch.

    with open("model.pth", "wb") as handle:
        write_torch(handle, {"model": {"gpt.mel_head.bias": bias}, "step": 1000}, Path("model.pth"))

The counterpart of `torch_file`: the same kinds of values, the same limits. Tensors are read one at a time while they
are written, so that a model can be converted without being in memory. Equal content gives equal bytes.
"""

from __future__ import annotations

import itertools
import math
import pickle  # only for the names of its opcodes
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from myxtts.checkpoints.errors import CheckpointError
from myxtts.checkpoints.pickle_machine import MAX_DEPTH, MAX_TEXT_BYTES
from myxtts.checkpoints.tensor import LazyTensor, Tensor, read_array
from myxtts.checkpoints.torch_globals import STORAGE_DTYPES, UNTYPED_DTYPES

ALIGNMENT = 64
"""Storages begin at multiples of this many bytes, so that torch can map them into memory."""

_PREFIX = "archive"
_VERSION = b"3\n"
_PADDING_FIELD = 0x4246
_LOCAL_HEADER_BYTES = 30
_ZIP64_FIELD_BYTES = 20
_ZIP64_FROM_BYTES = 2**30
"""Records from here on get 64-bit sizes; well below 2 GiB, where zipfile would switch by itself."""

_TYPED_STORAGES = {dtype: name for name, dtype in STORAGE_DTYPES.items()}
_UNTYPED_NAMES = {dtype: name for name, dtype in UNTYPED_DTYPES.items()}


def write_torch(handle: BinaryIO, content: Any, path: Path) -> None:
    """Writes a value into an open file.

    Args:
        handle: can be sought.
        content: dictionaries (keys: text or whole numbers), lists, tuples, text, bytes, numbers, booleans, None, and
            tensors: NumPy arrays or `LazyTensor`s. A tensor that stands in several places is stored once.
        path: of the file, for messages.
    """
    writer = _PickleWriter(path)
    program = writer.write(content)
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        _add_record(archive, handle, "data.pkl", program)
        _add_record(archive, handle, "byteorder", sys.byteorder.encode())
        for key, tensor in enumerate(writer.tensors):
            _add_record(archive, handle, f"data/{key}", _read_bytes(tensor))
        _add_record(archive, handle, "version", _VERSION)


def _read_bytes(tensor: Tensor) -> memoryview:
    array = read_array(tensor)
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return native.reshape(-1).view(np.uint8).data


def _add_record(archive: zipfile.ZipFile, handle: BinaryIO, name: str, content: bytes | memoryview) -> None:
    # With the date that ZipInfo has by default, 1980: the time of writing would make equal files differ.
    info = zipfile.ZipInfo(f"{_PREFIX}/{name}")
    is_large = len(content) >= _ZIP64_FROM_BYTES
    header_bytes = _LOCAL_HEADER_BYTES + len(info.filename) + 4 + (_ZIP64_FIELD_BYTES if is_large else 0)
    padding = -(handle.tell() + header_bytes) % ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + b"Z" * padding
    info.file_size = len(content)
    with archive.open(info, "w", force_zip64=is_large) as record:
        record.write(content)


class _PickleWriter:
    """Describes a value as a pickle of protocol 2, and collects the tensors in it, in the order of their storages."""

    def __init__(self, path: Path):
        self.tensors: list[Tensor] = []
        self._path = path
        self._out = bytearray()
        self._storage_keys: dict[int, int] = {}
        self._memo: dict[str, int] = {}

    def write(self, content: Any) -> bytes:
        """The pickle of a value."""
        self._out += pickle.PROTO + b"\x02"
        self._write(content, depth=0)
        self._out += pickle.STOP
        return bytes(self._out)

    def _write(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise CheckpointError(
                f"{self._path}: the content is nested more than {MAX_DEPTH} deep, or contains itself."
            )
        match value:
            case None | bool():
                self._out += {None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value]
            case np.bool_() | np.integer() | np.floating():
                self._write(value.item(), depth)
            case int():
                self._write_int(value)
            case float():
                self._out += pickle.BINFLOAT + struct.pack(">d", value)
            case str():
                self._write_text(value)
            case bytes():
                self._write_call(
                    "_codecs", "encode", lambda: self._write_tuple((value.decode("latin1"), "latin1"), depth)
                )
            case list():
                self._out += pickle.EMPTY_LIST
                self._write_group(value, pickle.APPENDS, depth)
            case tuple():
                self._write_tuple(value, depth)
            case dict():
                self._write_dict(value, depth)
            case np.ndarray() | LazyTensor():
                self._write_tensor(value, depth)
            case _:
                raise CheckpointError(
                    f"{self._path}: values of type {type(value).__name__} cannot be written. Convert them to numbers, text or arrays."
                )

    def _write_int(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self._out += pickle.BININT + struct.pack("<i", value)
        elif -(2**63) <= value < 2**64:
            self._out += pickle.LONG1 + b"\x09" + value.to_bytes(9, "little", signed=True)
        else:
            raise CheckpointError(f"{self._path}: the number {value} does not fit 64 bits.")

    def _write_text(self, text: str) -> None:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError:
            raise CheckpointError(
                f"{self._path}: the text {text!r} holds half a character and cannot be written."
            ) from None
        if len(raw) > MAX_TEXT_BYTES:
            raise CheckpointError(f"{self._path}: a text of {len(raw)} bytes is longer than {MAX_TEXT_BYTES}.")
        self._out += pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw

    def _write_group(self, values: Iterable[Any], end: bytes, depth: int) -> None:
        self._out += pickle.MARK
        for value in values:
            self._write(value, depth + 1)
        self._out += end

    def _write_tuple(self, values: tuple[Any, ...], depth: int) -> None:
        self._write_group(values, pickle.TUPLE, depth)

    def _write_dict(self, values: dict[Any, Any], depth: int) -> None:
        if any(type(key) not in (str, int) for key in values):
            raise CheckpointError(f"{self._path}: keys must be text or whole numbers, but one of them is not.")
        self._out += pickle.EMPTY_DICT
        self._write_group(itertools.chain.from_iterable(values.items()), pickle.SETITEMS, depth)

    def _write_tensor(self, tensor: Tensor, depth: int) -> None:
        storage_class = _TYPED_STORAGES.get(tensor.dtype.newbyteorder("="))
        untyped = _UNTYPED_NAMES.get(tensor.dtype.newbyteorder("="))
        if storage_class is None and untyped is None:
            raise CheckpointError(
                f"{self._path}: torch has no tensors of type {tensor.dtype}. Convert the array first."
            )
        module, name = ("torch", storage_class) if storage_class else ("torch.storage", "UntypedStorage")
        if id(tensor) not in self._storage_keys:
            self._storage_keys[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]

        def write_arguments() -> None:
            self._out += pickle.MARK
            self._out += pickle.MARK
            self._write_text("storage")
            self._write_global(module, name)
            self._write_text(str(self._storage_keys[id(tensor)]))
            self._write_text("cpu")
            self._write_int(tensor.size if storage_class else tensor.nbytes)
            self._out += pickle.TUPLE + pickle.BINPERSID
            self._write_int(0)
            self._write_tuple(tuple(tensor.shape), depth)
            self._write_tuple(tuple(strides), depth)
            self._out += pickle.NEWFALSE
            self._write_call("collections", "OrderedDict", lambda: self._write_tuple((), depth))
            if untyped is not None:
                self._write_global("torch", untyped)
            self._out += pickle.TUPLE

        self._write_call(
            "torch._utils", "_rebuild_tensor_v2" if storage_class else "_rebuild_tensor_v3", write_arguments
        )

    def _write_call(self, module: str, name: str, write_arguments: Callable[[], None]) -> None:
        self._write_global(module, name)
        write_arguments()
        self._out += pickle.REDUCE

    def _write_global(self, module: str, name: str) -> None:
        line = f"{module}\n{name}\n"
        if line in self._memo:
            self._out += pickle.BINGET + bytes([self._memo[line]])
        else:
            self._memo[line] = len(self._memo)
            self._out += pickle.GLOBAL + line.encode() + pickle.BINPUT + bytes([self._memo[line]])
