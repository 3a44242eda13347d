"""Columns that stay small at a million lines: a blob of bytes with offsets, or a number for each different name."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Names on disk may hold bytes that are not UTF-8: they must come back as they were.
_ERRORS = "surrogateescape"


@dataclass(frozen=True, eq=False)
class TextColumn:
    """An immutable sequence of strings, one byte blob behind all of them."""

    blob: bytes | bytearray
    offsets: NDArray[np.int64]
    """Where each entry starts in the blob; one more than there are entries."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        return self.blob[self.offsets[index] : self.offsets[index + 1]].decode("utf-8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        for entry in self.iter_bytes():
            yield entry.decode("utf-8", _ERRORS)

    def iter_bytes(self) -> Iterator[bytes | bytearray]:
        """All entries, encoded."""
        start = 0
        for end in self.offsets[1:]:
            yield self.blob[start:end]
            start = end

    def take(self, rows: NDArray[np.intp]) -> TextColumn:
        """A column of the entries at `rows`, in that order."""
        lengths = np.diff(self.offsets)[rows]
        if len(rows) == len(self) and np.array_equal(rows, np.arange(len(self))):
            return self
        pieces = (self.blob[self.offsets[row] : self.offsets[row + 1]] for row in rows)
        return TextColumn(b"".join(pieces), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


class TextColumnBuilder:
    """Collects the entries of a `TextColumn` one by one."""

    def __init__(self, entries: Iterable[str] = ()):
        self._blob = bytearray()
        self._offsets = array("q", [0])
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, entry: str) -> None:
        """Add one entry at the end."""
        self._blob += entry.encode("utf-8", _ERRORS)
        self._offsets.append(len(self._blob))

    def build(self) -> TextColumn:
        """The finished column. It takes the builder's memory over: nothing can be appended any more."""
        return TextColumn(self._blob, np.frombuffer(self._offsets, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class NameColumn:
    """A sequence of strings of which few are different: speakers, languages."""

    names: tuple[str, ...]
    """The different values, in order of first appearance."""
    codes: NDArray[np.int32]
    """For each entry, which of `names` it is."""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> str:
        return self.names[int(self.codes[index])]

    def take(self, rows: NDArray[np.intp]) -> NameColumn:
        """A column of the entries at `rows`, in that order; its names are only those that occur in it."""
        used, first, codes = np.unique(self.codes[rows], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return NameColumn(tuple(self.names[used[i]] for i in order), rank[codes].astype(np.int32))


class NameColumnBuilder:
    """Collects the entries of a `NameColumn` one by one."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._codes = array("i")

    def append(self, name: str) -> None:
        """Add one entry at the end."""
        self._codes.append(self._numbers.setdefault(name, len(self._numbers)))

    def build(self) -> NameColumn:
        """The finished column."""
        return NameColumn(tuple(self._numbers), np.array(self._codes, dtype=np.int32))
