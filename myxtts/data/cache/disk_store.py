"""Records on disk: the segments of one generation, those of other processes among them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from myxtts.data.cache.compaction import compact_segments
from myxtts.data.cache.free_space import read_free_disk_bytes
from myxtts.data.cache.generation import open_generation
from myxtts.data.cache.key import GenerationKey
from myxtts.data.cache.records import Entries
from myxtts.data.cache.segment import SegmentReader, SegmentWriter, list_segments

_MAX_SEGMENTS = 8
"""More than these are merged at opening, as far as their writers are gone."""


class DiskStore:
    """The segments of a generation, and one of our own as soon as something is written."""

    def __init__(self, directory: Path, key: GenerationKey):
        self.folder = open_generation(directory, key)
        self._readers: dict[str, SegmentReader] = {}
        self._writer: SegmentWriter | None = None
        if len(list_segments(self.folder)) > _MAX_SEGMENTS:
            compact_segments(self.folder)

    def load_entries(self) -> Iterator[tuple[SegmentReader, Entries, int]]:
        """What other writers have added since the last call: by segment, the entries and the number of damaged ones."""
        listed: list[str] = []
        # Again when the list has changed: a compaction may remove segments after putting their records in a new one.
        while (names := list_segments(self.folder)) != listed:
            listed = names
            for name in names:
                reader = self._find_reader(name)
                if reader is not None:
                    entries, damaged = reader.load_entries()
                    yield reader, entries, damaged

    def append(self, payloads: bytes, entries: Entries) -> tuple[SegmentWriter, Entries]:
        """Writes records to our own segment; gives them with their places in it.

        Raises:
            OSError: they cannot be written. Nothing of them remains, and what was written before is untouched.
        """
        if read_free_disk_bytes(self.folder) < len(payloads) + entries.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._writer is None:
            self._writer = SegmentWriter(self.folder)
        return self._writer, self._writer.append(payloads, entries)

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        own = self._writer.size_bytes if self._writer else 0
        return own + sum(reader.size_bytes for reader in self._readers.values())

    def close(self) -> None:
        """Closes all files."""
        for reader in self._readers.values():
            reader.close()
        if self._writer is not None:
            self._writer.close()

    def _find_reader(self, name: str) -> SegmentReader | None:
        if self._writer is not None and name == self._writer.name:
            return None
        if name not in self._readers:
            try:
                self._readers[name] = SegmentReader(self.folder, name)
            except FileNotFoundError:
                return None
        return self._readers[name]
