"""Items for worker processes, made when they are asked for: a million of them at once would cost more than everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class LazyItems(Sequence[Any]):
    """What `make_item` gives for each row.

    Args:
        rows: numbers, one per item.
        make_item: an item of its number.
    """

    def __init__(self, rows: range | NDArray[np.intp], make_item: Callable[[int], Any]):
        self._rows = rows
        self._make_item = make_item

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._make_item(int(row)) for row in self._rows[index]]
        return self._make_item(int(self._rows[index]))
