"""The closed list of names a torch file may use, and what each of them becomes here.

Tensors become `LazyTensor`s, Coqui's configuration objects become mappings of their attributes, and everything else
becomes the plain Python value it stands for. Adding a name means adding a function here that builds a value from its
arguments; it must not call, import or look up anything the file chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.pickle_machine import ConfigRecord, Maker, PickleRefusedError, Spend, check_key
from myxtts.checkpoints.tensor import MAX_DIMENSIONS, LazyTensor, is_countable

STORAGE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
"""Names in the module `torch` -> the type of their elements."""

UNTYPED_DTYPES: Mapping[str, np.dtype[Any]] = {
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
}
"""Types for which torch has no typed storage; their tensors are views of bytes."""

CONFIG_CLASSES: Mapping[str, tuple[str, ...]] = {
    "TTS.tts.models.xtts": ("XttsArgs", "XttsAudioConfig"),
    "TTS.tts.configs.xtts_config": ("XttsConfig", "XttsArgs", "XttsAudioConfig"),
    "TTS.tts.configs.shared_configs": ("BaseTTSConfig", "CharactersConfig"),
    "TTS.config.shared_configs": ("BaseAudioConfig", "BaseDatasetConfig", "BaseTrainingConfig"),
    "TTS.tts.layers.xtts.trainer.gpt_trainer": ("GPTArgs", "GPTTrainerConfig", "XttsAudioConfig"),
    "trainer.trainer": ("TrainerConfig",),
}
"""Coqui's configuration classes that are found in XTTS files, by module."""

_NUMPY_SCALARS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


@dataclass(frozen=True)
class StorageType:
    """The class of a storage."""

    dtype: np.dtype[Any] | None
    """None: bytes; the tensor says of which type."""


@dataclass(frozen=True)
class Storage:
    """A run of elements in a record of the file."""

    dtype: np.dtype[Any] | None
    """As in `StorageType`."""
    count: int
    fetch: Callable[[int, int], bytearray]
    """Reads (start, length), both in bytes."""
    is_big_endian: bool


@dataclass(frozen=True)
class _TorchDtype:
    dtype: np.dtype[Any]


@dataclass
class _NumpyDtype:
    code: str
    order: str = "<"


def _refuse(problem: str) -> PickleRefusedError:
    return PickleRefusedError(f"{problem} It is damaged, or made to do harm.")


def _take_arguments(arguments: tuple[Any, ...], count: int, name: str) -> tuple[Any, ...]:
    """The arguments, if they are as many as they should be; torch gives some of its functions one more."""
    if not count <= len(arguments) <= count + 1:
        raise _refuse(f"gives {name} {len(arguments)} arguments instead of {count}.")
    return arguments


def _make_tensor(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    storage, offset, shape, strides, _, hooks, *metadata = _take_arguments(arguments, 6, "a tensor")
    if not isinstance(storage, Storage) or storage.dtype is None or any(metadata) or hooks:
        raise _refuse("describes a tensor without a storage, or one with code attached.")
    return _view_storage(storage, storage.dtype, storage.count, offset, shape, strides)


def _make_untyped_tensor(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    storage, offset, shape, strides, _, hooks, dtype, *metadata = _take_arguments(arguments, 7, "a tensor")
    known = isinstance(storage, Storage) and storage.dtype is None and isinstance(dtype, _TorchDtype)
    if not known or any(metadata) or hooks:
        raise _refuse("describes a tensor without a storage, or one with code attached.")
    return _view_storage(storage, dtype.dtype, storage.count // dtype.dtype.itemsize, offset, shape, strides)


def _view_storage(
    storage: Storage, dtype: np.dtype[Any], count: int, offset: Any, shape: Any, strides: Any
) -> LazyTensor:
    """A tensor that shows part of a storage, once every element of it is known to lie inside.

    Args:
        dtype: the type of the elements.
        count: elements the storage holds.
        offset: first element shown.
        shape: elements along each dimension.
        strides: elements to skip from one index to the next, along each dimension.
    """
    if type(shape) is not tuple or type(strides) is not tuple or not len(shape) == len(strides) <= MAX_DIMENSIONS:
        raise _refuse(f"describes a tensor without a shape, or with more than {MAX_DIMENSIONS} dimensions.")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise _refuse("describes a tensor with a shape, stride or offset that is not a number from 0 up.")
    size = math.prod(shape)
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if size else 0
    # More elements than the storage has would be a view that repeats itself: a few bytes that ask for terabytes.
    if offset + span > count or size > count or not is_countable(shape):
        raise _refuse(f"describes a tensor of shape {shape} in a storage of only {count} elements.")

    def fetch() -> NDArray[Any]:
        if size == 0:
            return np.zeros(shape, dtype)
        content = storage.fetch(offset * dtype.itemsize, span * dtype.itemsize)
        flat = _decode_elements(content, dtype, storage.is_big_endian)
        view = np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])
        return np.ascontiguousarray(view).reshape(shape)

    return LazyTensor(shape, dtype, fetch)


def _decode_elements(content: bytearray, dtype: np.dtype[Any], is_big_endian: bool) -> NDArray[Any]:
    if dtype == np.bool_:
        # A byte other than 0 and 1 is no valid boolean in memory.
        return np.not_equal(np.frombuffer(content, np.uint8), 0)
    unsigned = np.dtype(f"{'>' if is_big_endian else '<'}u{dtype.itemsize}")
    native = np.frombuffer(content, unsigned).astype(unsigned.newbyteorder("="), copy=False)
    elements: NDArray[Any] = native.view(dtype)
    return elements


def _make_parameter(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    tensor, *_ = _take_arguments(arguments, 3, "a parameter")
    if not isinstance(tensor, LazyTensor) or arguments[2]:
        raise _refuse("describes a parameter without a tensor, or one with code attached.")
    return tensor


def _make_dict(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    """An ordered dictionary: empty, or from pairs, as Python writes it with and without `items`."""
    pairs = arguments[0] if len(arguments) == 1 else []
    if len(arguments) > 1 or type(pairs) not in (list, tuple):
        raise _refuse("describes a dictionary by something other than pairs.")
    spend(len(pairs))
    if any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
        raise _refuse("describes a dictionary by something other than pairs.")
    return {check_key(key): value for key, value in pairs}


def _make_counter(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    counts = arguments[0] if arguments else {}
    if len(arguments) > 1 or type(counts) is not dict:
        raise _refuse("describes a counter by something other than counts.")
    spend(len(counts))
    return dict(counts)


def _make_default_dict(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    # Its factory, if any, is a name from this table, and is not used: what is missing stays missing.
    if len(arguments) > 1:
        raise _refuse("describes a dictionary with more than a default.")
    return {}


def _list_elements(arguments: tuple[Any, ...], spend: Spend) -> list[Any]:
    elements = arguments[0] if arguments else []
    if len(arguments) > 1 or type(elements) not in (list, tuple):
        raise _refuse("describes a set or a shape by something other than a list.")
    spend(len(elements))
    return list(elements)


def _make_set(arguments: tuple[Any, ...], spend: Spend) -> set[Any]:
    return {check_key(element) for element in _list_elements(arguments, spend)}


def _make_frozen_set(arguments: tuple[Any, ...], spend: Spend) -> frozenset[Any]:
    return frozenset(_make_set(arguments, spend))


def _make_size(arguments: tuple[Any, ...], spend: Spend) -> tuple[int, ...]:
    extents = _list_elements(arguments, spend)
    if any(type(extent) is not int for extent in extents):
        raise _refuse("describes a shape by something other than numbers.")
    return tuple(extents)


def _make_bytes(arguments: tuple[Any, ...], spend: Spend) -> bytes:
    """Bytes as protocol 2 writes them: text of code points 0 to 255 and the word latin1."""
    if len(arguments) != 2 or type(arguments[0]) is not str or arguments[1] != "latin1":
        raise _refuse("describes bytes by something other than latin1 text.")
    spend(1 + len(arguments[0]) // 16)
    try:
        return arguments[0].encode("latin1")
    except UnicodeEncodeError:
        raise _refuse("describes bytes by text beyond latin1.") from None


def _make_byte_array(arguments: tuple[Any, ...], spend: Spend) -> bytes:
    content = arguments[0] if arguments else b""
    if len(arguments) > 1 or type(content) is not bytes:
        raise _refuse("describes a byte array by something other than bytes.")
    return content


def _make_numpy_dtype(arguments: tuple[Any, ...], spend: Spend) -> _NumpyDtype:
    code = arguments[0] if arguments else None
    if type(code) is not str or code not in _NUMPY_SCALARS:
        raise _refuse(f"uses the NumPy type {code!r}.")
    return _NumpyDtype(code)


def _set_numpy_byte_order(target: _NumpyDtype, state: Any) -> None:
    if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|"):
        raise _refuse("describes a NumPy type in an unknown way.")
    target.order = state[1]


def _make_numpy_scalar(arguments: tuple[Any, ...], spend: Spend) -> int | float | bool:
    dtype, content = _take_arguments(arguments, 2, "a NumPy number")[:2]
    if not isinstance(dtype, _NumpyDtype) or type(content) is not bytes or len(content) != int(dtype.code[1]):
        raise _refuse("describes a NumPy number in an unknown way.")
    number: int | float | bool = np.frombuffer(content, np.dtype(dtype.order.replace("|", "<") + dtype.code))[0].item()
    return number


def _ignore_state(target: Any, state: Any) -> None:
    """Attributes of a dictionary (torch keeps versions of layers there) are of no use outside torch."""


def _set_config_state(target: ConfigRecord, state: Any) -> None:
    if type(state) is not dict or any(type(key) is not str for key in state):
        raise _refuse(f"gives {target.class_name} attributes that have no names.")
    target.update(state)


def _name_config_class(module: str, name: str) -> Maker:
    def make(arguments: tuple[Any, ...], spend: Spend) -> ConfigRecord:
        if arguments:
            raise _refuse(f"gives {module}.{name} arguments.")
        return ConfigRecord(f"{module}.{name}")

    return Maker(make, _set_config_state)


def _list_globals() -> Iterator[tuple[tuple[str, str], Any]]:
    for name, dtype in STORAGE_DTYPES.items():
        yield ("torch", name), StorageType(dtype)
    for name, dtype in UNTYPED_DTYPES.items():
        yield ("torch", name), _TorchDtype(dtype)
    yield ("torch.storage", "UntypedStorage"), StorageType(None)
    yield ("torch._utils", "_rebuild_tensor_v2"), Maker(_make_tensor)
    yield ("torch._utils", "_rebuild_tensor_v3"), Maker(_make_untyped_tensor)
    yield ("torch._utils", "_rebuild_parameter"), Maker(_make_parameter)
    yield ("torch", "Size"), Maker(_make_size)
    yield ("collections", "OrderedDict"), Maker(_make_dict, _ignore_state)
    yield ("collections", "Counter"), Maker(_make_counter)
    yield ("collections", "defaultdict"), Maker(_make_default_dict)
    for builtins in ("builtins", "__builtin__"):
        yield (builtins, "set"), Maker(_make_set)
        yield (builtins, "frozenset"), Maker(_make_frozen_set)
        yield (builtins, "bytearray"), Maker(_make_byte_array)
        for factory in ("dict", "list", "int", "float"):
            yield (builtins, factory), _FACTORY
    yield ("_codecs", "encode"), Maker(_make_bytes)
    yield ("numpy", "dtype"), Maker(_make_numpy_dtype, _set_numpy_byte_order)
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
        yield (core, "scalar"), Maker(_make_numpy_scalar)
    for module, names in CONFIG_CLASSES.items():
        for name in names:
            yield (module, name), _name_config_class(module, name)


_FACTORY = object()
"""Stands for the default of a defaultdict; cannot be called."""

TORCH_GLOBALS: Mapping[tuple[str, str], Any] = dict(_list_globals())
