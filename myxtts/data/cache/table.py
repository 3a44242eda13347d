"""Finding a record by clip: entries in NumPy columns, about 80 bytes each, so that a million fit in 80 MB."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from myxtts.data.cache.clip_ids import ClipIds
from myxtts.data.cache.records import ENTRY, Entries

Rows = NDArray[np.int64]
"""Row numbers of a table; -1 where there is none."""

_GROWTH = 1.25
_MIN_RECENT = 1024


class EntryTable:
    """Entries by clip id. Of several entries for a clip the last one added counts.

    Rows are kept in the order in which they came, with a sorted list of ids beside them. What was added since the last
    sorting waits in a dictionary; sorting again when that has grown to a part of the whole keeps additions cheap.
    """

    def __init__(self) -> None:
        self._entries: Entries = np.zeros(0, ENTRY)
        self._sources = np.zeros(0, np.int32)
        self._count = 0
        self._sorted_ids = np.zeros(0, np.uint64)
        self._sorted_rows: Rows = np.zeros(0, np.int64)
        self._recent: dict[int, int] = {}
        self._is_sorted = True

    def __len__(self) -> int:
        self._sort()
        return len(self._sorted_ids)

    def find(self, ids: ClipIds) -> Rows:
        """The row of each clip, or -1."""
        words = ids[:, 0]
        rows: Rows = np.full(len(ids), -1, np.int64)
        if len(self._sorted_ids):
            places = np.minimum(np.searchsorted(self._sorted_ids, words), len(self._sorted_ids) - 1)
            rows = np.where(self._sorted_ids[places] == words, self._sorted_rows[places], -1)
        if self._recent:
            for position, word in enumerate(words.tolist()):
                rows[position] = self._recent.get(word, rows[position])
        if self._count:
            # Sorted by half an id only: the other half decides, so that a collision is a miss and not a wrong hit.
            rows[self._entries["id"][rows, 1] != ids[:, 1]] = -1
        return rows

    def get(self, rows: Rows) -> tuple[Entries, NDArray[np.int32]]:
        """The entries in some rows, and their sources."""
        return self._entries[rows], self._sources[rows]

    def list_rows(self) -> Rows:
        """All rows that `find` can give, in no special order."""
        self._sort()
        return self._sorted_rows

    def add(self, entries: Entries, source: int) -> None:
        """Adds entries from one source, a number of the caller's."""
        start, end = self._count, self._count + len(entries)
        if end > len(self._entries):
            self._grow(end)
        self._entries[start:end] = entries
        self._sources[start:end] = source
        self._count = end
        self._is_sorted = False
        if len(self._recent) + len(entries) > max(_MIN_RECENT, len(self._sorted_ids) // 8):
            self._sort()
        else:
            self._recent.update(zip(entries["id"][:, 0].tolist(), range(start, end), strict=True))

    def discard(self, row: int) -> None:
        """Forgets one row. An older entry for the same clip may be found again later."""
        self._recent[int(self._entries["id"][row, 0])] = -1
        self._sources[row] = -1
        self._is_sorted = False

    def _grow(self, needed: int) -> None:
        capacity = max(needed, int(len(self._entries) * _GROWTH))
        self._entries = np.concatenate([self._entries[: self._count], np.zeros(capacity - self._count, ENTRY)])
        self._sources = np.concatenate([self._sources[: self._count], np.zeros(capacity - self._count, np.int32)])

    def _sort(self) -> None:
        if self._is_sorted:
            return
        rows = np.flatnonzero(self._sources[: self._count] >= 0)
        ids = self._entries["id"][rows, 0]
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], rows[order]
        is_last = np.ones(len(ids), np.bool_)
        is_last[:-1] = ids[1:] != ids[:-1]
        self._sorted_ids, self._sorted_rows = ids[is_last], rows[is_last]
        self._recent.clear()
        self._is_sorted = True
