"""Tensors in files: what is known of one before it is read, and safetensors."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from myxtts.errors import CheckpointError, ModelFileError
from myxtts.files import open_file

MAX_DIMENSIONS = 32
MOST_ELEMENTS = 1 << 40
"""More than any file holds. A tensor with a dimension of 0 has none, yet NumPy multiplies the others."""


class LazyTensor:
    """Shape and type of a tensor in a file; `read()` fetches its values.

    NumPy takes it as an array (`np.asarray(tensor)`), reading at that moment.
    """

    __slots__ = ("_fetch", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], fetch: Callable[[], NDArray[Any]]):
        self.shape = shape
        self.dtype = dtype
        self._fetch = fetch

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the values take in memory."""
        return self.size * self.dtype.itemsize

    def read(self) -> NDArray[Any]:
        """The values, read anew at every call, in an array of the caller's own."""
        return self._fetch()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("A tensor in a file cannot become an array without a copy.")
        array = self.read()
        return array if dtype is None else array.astype(dtype, copy=False)


Tensor: TypeAlias = LazyTensor | NDArray[Any]


def is_countable(shape: Sequence[int]) -> bool:
    """Whether NumPy can make an array of this shape, memory aside. For shapes that a file states."""
    return len(shape) <= MAX_DIMENSIONS and math.prod(max(extent, 1) for extent in shape) <= MOST_ELEMENTS


def read_array(tensor: Tensor) -> NDArray[Any]:
    """The values of a tensor, whether it is in a file or in memory."""
    return tensor.read() if isinstance(tensor, LazyTensor) else tensor


def read_bytes(tensor: Tensor) -> memoryview:
    """The values as files hold them: one after the other, the lowest byte first."""
    array = read_array(tensor)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_HEADER_ALIGNMENT = 8
MAX_HEADER_BYTES = 8 * 2**20
"""The names and shapes of a training checkpoint of XTTS v2 take 0.5 MB. The library would take 100 MB of them, and ten times
that in memory."""
_METADATA_NAME = "__metadata__"
"""Where the format keeps notes; no tensor can have this name."""


def encode_safetensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file, piece by piece, one tensor at a time. Equal tensors give equal bytes.

    Raises `CheckpointError`, before the first piece, for what could not be read back.
    """
    # Wide types first, so that every tensor is aligned to its type; then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        if name == _METADATA_NAME:
            raise CheckpointError(
                f"No tensor can be saved under the name {name}: safetensors files keep notes there. Leave it out of the model."
            )
        if not is_countable(tensor.shape):
            raise CheckpointError(f"{name:.200}: no array has the shape {tensor.shape}, so it cannot be saved.")
        dtype_name = _DTYPE_NAMES.get(tensor.dtype.newbyteorder("="))
        if dtype_name is None:
            raise CheckpointError(f"{name:.200}: arrays of type {tensor.dtype} cannot be saved. Convert it to float32.")
        header[name] = {
            "dtype": dtype_name,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"The names and shapes of {len(names)} tensors take {len(text)} bytes, but a file must have at most {MAX_HEADER_BYTES}."
        )
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield read_bytes(tensors[name])


def open_safetensors(path: str | os.PathLike[str]) -> dict[str, LazyTensor]:
    """The tensors of a file by name, in the file's order of names; each is read when it is asked for."""
    path = Path(path)
    try:
        # The library opens the file itself, and would wait for the writer of a pipe.
        with open_file(path) as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
        if MAX_HEADER_BYTES < header_bytes < path.stat().st_size:
            raise ModelFileError(
                path,
                f"states names and shapes of {header_bytes} bytes; model files have at most {MAX_HEADER_BYTES}. It may be made "
                "to exhaust memory.",
            )
        file: Any = safe_open(str(path), framework="np", backend="pread")
        return {name: _describe_tensor(path, file, name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelFileError(path, f"is not a whole safetensors file ({error}). Get the file again.") from None
    except MemoryError:
        # The library maps the whole file to read its beginning; a process may be limited in what it maps.
        raise ModelFileError(
            path, f"has {path.stat().st_size} bytes, more than this process may map. Raise its limit (ulimit -v)."
        ) from None


def _describe_tensor(path: Path, file: Any, name: str) -> LazyTensor:
    part = file.get_slice(name)
    dtype = DTYPES.get(part.get_dtype())
    if not is_countable(part.get_shape()):
        raise ModelFileError(
            path, f"holds {name:.200} with a shape that no array has. It is damaged, or made to do harm."
        )
    if dtype is None:
        raise ModelFileError(path, f"holds {name:.200} as {part.get_dtype()}, a type that MyXTTS does not use.")
    return LazyTensor(tuple(part.get_shape()), dtype, functools.partial(file.get_tensor, name))
