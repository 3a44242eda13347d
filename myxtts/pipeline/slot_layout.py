"""What a slot holds: named arrays, and where each of them lies.

Where an array lies follows from the names, types and shapes alone. Positions are therefore never sent from process to
process, and a description that has been checked cannot point outside its slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.pipeline.errors import MalformedMessageError, SlotContentError

Arrays = Mapping[str, NDArray[Any]]

ALIGNMENT = 64
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
_MOST_ARRAYS = 256
_MOST_AXES = 8
_LONGEST_NAME = 128


@dataclass(frozen=True)
class ArraySpec:
    """Name, type and shape of one array."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


Layout = tuple[ArraySpec, ...]


def describe_arrays(arrays: Arrays) -> Layout:
    """The specs of arrays. Raises `SlotContentError` for what another process could not read back."""
    if len(arrays) > _MOST_ARRAYS:
        raise SlotContentError(f"A slot carries at most {_MOST_ARRAYS} arrays; these are {len(arrays)}.")
    specs = []
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES or not array.dtype.isnative:
            kind = array.dtype.str if isinstance(array, np.ndarray) else type(array).__name__
            raise SlotContentError(f"{name!r} is {kind}; a slot carries NumPy arrays of {', '.join(sorted(DTYPES))}.")
        if array.ndim > _MOST_AXES or len(name) > _LONGEST_NAME:
            raise SlotContentError(
                f"{name!r} has {array.ndim} axes; at most {_MOST_AXES}, and a name of {_LONGEST_NAME} characters, are carried."
            )
        specs.append(ArraySpec(name, array.dtype.name, array.shape))
    return tuple(specs)


def place_arrays(layout: Layout) -> Iterator[tuple[ArraySpec, int]]:
    """Each spec with the offset in bytes at which its array begins."""
    offset = 0
    for spec in layout:
        yield spec, offset
        offset += _align(spec.size_bytes)


def measure_layout(layout: Layout) -> int:
    """Bytes from the beginning of a slot to the end of its last array, aligned."""
    return sum(_align(spec.size_bytes) for spec in layout)


def dump_layout(layout: Layout) -> list[list[Any]]:
    """A layout as JSON values."""
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in layout]


def parse_layout(values: Any) -> Layout:
    """A layout from JSON values that another process sent. Raises `MalformedMessageError`."""
    if not isinstance(values, list) or len(values) > _MOST_ARRAYS:
        raise MalformedMessageError("A slot's description must be a list of arrays.")
    layout = tuple(_parse_spec(value) for value in values)
    if len({spec.name for spec in layout}) < len(layout):
        raise MalformedMessageError("A slot's description names an array twice.")
    return layout


def _parse_spec(value: Any) -> ArraySpec:
    match value:
        case [str(name), str(dtype), list(shape)] if (
            dtype in DTYPES and len(name) <= _LONGEST_NAME and _is_shape(shape)
        ):
            return ArraySpec(name, dtype, tuple(shape))
    raise MalformedMessageError(f"Not the description of an array: {str(value)[:200]}")


def _is_shape(shape: Sequence[Any]) -> bool:
    if len(shape) > _MOST_AXES or not all(type(size) is int and size >= 0 for size in shape):
        return False
    # An axis of length zero must not hide one that NumPy cannot count.
    return bool(math.prod(max(1, size) for size in shape) < 1 << 48)


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
