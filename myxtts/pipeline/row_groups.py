"""Rows of a batch in groups of one size, so that every group is of one shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class RowGroup(NamedTuple):
    """Some rows of a batch."""

    rows: tuple[int, ...]
    padded: NDArray[np.intp]
    """The same, its last one repeated up to the size of the group."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """The rows of an array, as many as the group's size. The array itself when these are all of it."""
        is_whole = len(self.padded) == len(array) and len(self.rows) == len(array)
        return array if is_whole else array[self.padded]


def group_rows(rows: Sequence[int], size: int) -> Iterator[RowGroup]:
    """Groups of `size` rows each; the last one may hold fewer."""
    for first in range(0, len(rows), size):
        own = tuple(rows[first : first + size])
        yield RowGroup(own, np.array(own + own[-1:] * (size - len(own)), np.intp))
