"""Features that depend on the clip alone, kept so that each is prepared once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from myxtts.data.cache.clip_ids import ClipIds
from myxtts.data.cache.disk_store import DiskStore
from myxtts.data.cache.free_space import compute_memory_limit
from myxtts.data.cache.key import GenerationKey
from myxtts.data.cache.memory_store import MemoryStore
from myxtts.data.cache.policy import Policy
from myxtts.data.cache.records import Entries, decode_record, encode_records, is_sound, move_entries
from myxtts.data.cache.table import EntryTable
from myxtts.devices.host_memory import read_free_memory_bytes

_log = logging.getLogger(__name__)

Feature = NDArray[Any]


class _Source(Protocol):
    def read(self, offset: int, size_bytes: int) -> bytes: ...


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds and how it has served since it was opened."""

    policy: Policy
    records: int
    """Clips whose feature can be had."""
    hits: int
    misses: int
    damaged: int
    """Records found damaged; each became a miss."""
    not_kept: int
    """Features that were given and not kept, for want of room."""
    memory_bytes: int
    disk_bytes: int
    """Of the generation, with what other processes wrote as far as it was seen."""


class FeatureCache:
    """One feature of many clips, by clip id. For use in one thread of one process.

    Other processes may use the same directory and key at the same time: each writes files of its own and reads those of
    all. What cannot be written (a full disk) is kept in memory as far as the limit allows, else prepared anew; a cache
    never ends a run.

    Example:
        ids = identify_files(corpus.audio.iter_bytes(), corpus.size_bytes, corpus.mtime_ns)
        with FeatureCache.open("disk", directory, key) as cache:
            codes = cache.get_many(ids[numbers])     # None where a clip's codes have to be prepared
            cache.put_many(ids[missing], prepared)
    """

    def __init__(self, policy: Policy, disk: DiskStore | None, memory: MemoryStore | None):
        self._policy: Policy = policy
        self._disk = disk
        self._memory = memory
        self._is_writing_disk = disk is not None
        self._table = EntryTable()
        self._sources: list[_Source] = []
        self._source_numbers: dict[_Source, int] = {}
        self._hits = self._misses = self._damaged = self._not_kept = 0
        self.refresh()

    @classmethod
    def open(
        cls, policy: Policy, directory: Path, key: GenerationKey, *, memory_limit_bytes: int | None = None
    ) -> FeatureCache:
        """A cache for the features of one key.

        Args:
            policy: `auto` has to be decided before, by `decide_policy`.
            directory: of all generations; made and used only with policy `disk`.
            key: what the feature depends on besides the clip.
            memory_limit_bytes: with `memory`, what may be kept; with `disk`, what may be kept when the disk is full. Never
                more than half of what is free now, which is also the default.

        Raises:
            CacheFolderError: policy `disk`, and there is no usable directory.
            CacheKeyError: policy `disk`, and the folder of this key holds something else.
        """
        assert policy in ("off", "memory", "disk"), policy
        disk = DiskStore(directory, key) if policy == "disk" else None
        memory = None
        if policy != "off":
            memory = MemoryStore(compute_memory_limit(read_free_memory_bytes(), memory_limit_bytes))
        return cls(policy, disk, memory)

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. May be called again; nothing else may."""
        if self._disk is not None:
            if self._damaged:
                _log.info("%s: %d damaged records were found.", self._disk.folder, self._damaged)
            self._disk.close()
            self._disk = None

    def get_many(self, ids: ClipIds) -> list[Feature | None]:
        """The feature of each clip, read-only, or None where it is not there or damaged."""
        rows = self._table.find(ids)
        features: list[Feature | None] = [None] * len(ids)
        positions = np.flatnonzero(rows >= 0)
        entries, sources = self._table.get(rows[positions])
        columns = (entries[name].tolist() for name in ("offset", "size_bytes", "crc32", "kind", "rank", "shape"))
        found = zip(positions.tolist(), sources.tolist(), *columns, strict=True)
        hits = 0
        for position, source, offset, size_bytes, crc32, kind, rank, shape in found:
            payload = self._read(source, offset, size_bytes)
            if is_sound(payload, size_bytes, crc32):
                features[position] = decode_record(payload, kind, shape[:rank])
                hits += 1
            else:
                self._table.discard(int(rows[position]))
                self._note_damaged(1)
        self._hits += hits
        self._misses += len(ids) - hits
        return features

    def put_many(self, ids: ClipIds, features: Sequence[Feature]) -> None:
        """Keeps features of clips, where there is room. A clip whose feature is there already keeps the old one."""
        assert len(ids) == len(features), (len(ids), len(features))
        if self._memory is None:
            return
        new = self._select_new(ids)
        if new:
            self._store(self._memory, *encode_records(ids[new], [features[position] for position in new]))

    def refresh(self) -> None:
        """Makes what other processes have written meanwhile available. Opening does so too; an epoch is a good time."""
        if self._disk is None:
            return
        damaged = 0
        for reader, entries, damaged_entries in self._disk.load_entries():
            self._add(reader, entries)
            damaged += damaged_entries
        if damaged:
            self._note_damaged(damaged)

    def stats(self) -> CacheStats:
        """Counts since opening, and sizes now."""
        return CacheStats(
            policy=self._policy,
            records=len(self._table),
            hits=self._hits,
            misses=self._misses,
            damaged=self._damaged,
            not_kept=self._not_kept,
            memory_bytes=self._memory.size_bytes if self._memory else 0,
            disk_bytes=self._disk.size_bytes if self._disk else 0,
        )

    def _select_new(self, ids: ClipIds) -> list[int]:
        """Positions of the clips that are not kept yet, each clip once."""
        missing = np.flatnonzero(self._table.find(ids) < 0).tolist()
        return list({ids[position].tobytes(): position for position in reversed(missing)}.values())[::-1]

    def _store(self, memory: MemoryStore, payloads: bytes, entries: Entries) -> None:
        if self._disk is not None and self._is_writing_disk:
            try:
                self._add(*self._disk.append(payloads, entries))
                return
            except OSError as error:
                self._is_writing_disk = False
                _log.warning(
                    "%s: no more features can be written (%s). The run goes on without writing any; those that are there are "
                    "used.",
                    self._disk.folder,
                    error.strerror,
                )
        if memory.has_room(len(payloads), len(entries)):
            self._add(memory, move_entries(entries, memory.append(payloads, len(entries))))
            return
        if self._not_kept == 0:
            _log.info(
                "The feature cache is full: %d clips take the %.0f MB of memory it may use. Others are prepared every time.",
                len(self._table),
                memory.limit_bytes / 1e6,
            )
        self._not_kept += len(entries)

    def _add(self, source: _Source, entries: Entries) -> None:
        number = self._source_numbers.setdefault(source, len(self._sources))
        if number == len(self._sources):
            self._sources.append(source)
        self._table.add(entries, number)

    def _read(self, source: int, offset: int, size_bytes: int) -> bytes:
        try:
            return self._sources[source].read(offset, size_bytes)
        except OSError:
            # A bad sector is a damaged record like any other.
            return b""

    def _note_damaged(self, count: int) -> None:
        if self._damaged == 0:
            _log.warning(
                "%s: damaged records. Their features are prepared and written anew; further ones are only counted.",
                self._disk.folder if self._disk else "memory",
            )
        self._damaged += count
