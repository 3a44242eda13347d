"""One segment out of many: every run that was killed or stopped leaves one behind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from myxtts.data.cache.records import Entries, is_sound
from myxtts.data.cache.segment import SegmentReader, SegmentWriter, hold_dead_segments, remove_segment
from myxtts.data.cache.table import EntryTable

_log = logging.getLogger(__name__)

_BLOCK_RECORDS = 4096


def compact_segments(folder: Path) -> int:
    """How many segments were replaced by one. Only those whose writers are gone are touched.

    Damaged records and all but the latest copy of a record are left out. Readers of the old segments can go on, and
    being killed at any moment loses no record: the old segments are removed last.
    """
    with hold_dead_segments(folder) as dead:
        table = _load_table(dead)
        used = np.unique(table.get(table.list_rows())[1])
        if len(used) < 2:
            # Nothing to merge. Segments in which nothing is found are of no use, though.
            _remove_all(folder, [reader for number, reader in enumerate(dead) if number not in used])
            return 0
        try:
            _merge(folder, dead, table)
        except OSError as error:
            _log.warning("%s: %d segments cannot be merged (%s); they are read as they are.", folder, len(dead), error)
            return 0
        _remove_all(folder, dead)
        return len(dead)


def _load_table(readers: Sequence[SegmentReader]) -> EntryTable:
    table = EntryTable()
    for number, reader in enumerate(readers):
        table.add(reader.load_entries()[0], number)
    return table


def _merge(folder: Path, readers: Sequence[SegmentReader], table: EntryTable) -> None:
    writer = SegmentWriter(folder)
    try:
        # Rows of a table are in the order of files and places.
        rows = np.sort(table.list_rows())
        for start in range(0, len(rows), _BLOCK_RECORDS):
            entries, sources = table.get(rows[start : start + _BLOCK_RECORDS])
            payloads = [
                readers[source].read(offset, size)
                for source, offset, size in zip(
                    sources.tolist(), entries["offset"].tolist(), entries["size_bytes"].tolist(), strict=True
                )
            ]
            _append_sound(writer, entries, payloads)
        writer.flush()
    except OSError:
        remove_segment(folder, writer.name)
        raise
    finally:
        writer.close()


def _append_sound(writer: SegmentWriter, entries: Entries, payloads: Sequence[bytes]) -> None:
    """Copies the records whose bytes are what was written."""
    sound = [
        row
        for row, (payload, size_bytes, crc32) in enumerate(
            zip(payloads, entries["size_bytes"].tolist(), entries["crc32"].tolist(), strict=True)
        )
        if is_sound(payload, size_bytes, crc32)
    ]
    kept = entries[sound]
    sizes = kept["size_bytes"].astype(np.int64)
    kept["offset"] = np.cumsum(sizes) - sizes
    writer.append(b"".join(payloads[row] for row in sound), kept)


def _remove_all(folder: Path, readers: Sequence[SegmentReader]) -> None:
    for reader in readers:
        remove_segment(folder, reader.name)
