"""A tensor that stays in its file until somebody reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

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

    def __repr__(self) -> str:
        return f"LazyTensor(shape={self.shape}, dtype={self.dtype})"


Tensor: TypeAlias = LazyTensor | NDArray[Any]


def is_countable(shape: Sequence[int]) -> bool:
    """Whether NumPy can make an array of this shape, memory aside. For shapes that a file states."""
    return len(shape) <= MAX_DIMENSIONS and math.prod(max(extent, 1) for extent in shape) <= MOST_ELEMENTS


def read_array(tensor: Tensor) -> NDArray[Any]:
    """The values of a tensor, whether it is in a file or in memory."""
    return tensor.read() if isinstance(tensor, LazyTensor) else tensor
