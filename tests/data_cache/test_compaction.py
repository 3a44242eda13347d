"""Segments of writers that are gone become one; no record is lost, none is touched that is in use."""

import errno
import os

import pytest

from myxtts.data.cache import compaction, segment
from myxtts.data.cache.compaction import compact_segments
from myxtts.data.cache.disk_store import DiskStore
from myxtts.data.cache.segment import SegmentWriter, list_segments
from tests.data_cache.builders import fill, find_clips, list_names, make_key, open_cache, put, read_warnings


def fill_segments(directory, count, each=5):
    for number in range(count):
        folder = fill(directory, range(number * each, (number + 1) * each))
    return folder


def test_segments_become_one_with_the_same_records(tmp_path):
    folder = fill_segments(tmp_path, 4)
    assert compact_segments(folder) == 4
    assert len(list_segments(folder)) == 1
    assert len(list_names(folder)) == 3
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(30)) == set(range(20))


def test_many_segments_are_merged_at_opening_and_few_are_not(tmp_path):
    folder = fill_segments(tmp_path, 8)
    with open_cache(tmp_path):
        assert len(list_segments(folder)) == 8
    fill_segments(tmp_path, 9)
    with open_cache(tmp_path) as cache:
        assert len(list_segments(folder)) == 1
        assert find_clips(cache, range(100)) == set(range(45))


def test_a_large_merge_goes_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_BLOCK_RECORDS", 7)
    folder = fill_segments(tmp_path, 3, each=50)
    compact_segments(folder)
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(200)) == set(range(150))


def write_copies(directory):
    """Two segments with the same records, as two processes write them."""
    with open_cache(directory) as first, open_cache(directory) as second:
        put(first, range(10))
        put(second, range(5, 15))
    return directory / make_key().folder_name


def test_copies_are_left_out(tmp_path):
    folder = write_copies(tmp_path)
    compact_segments(folder)
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(20)) == set(range(15))
    index = next(folder.glob("*.index"))
    assert index.stat().st_size == 15 * 56


def test_damaged_records_are_left_out(tmp_path):
    folder = fill_segments(tmp_path, 2)
    path = sorted(folder.glob("*.data"))[0]
    path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    assert count_damaged(tmp_path) == 1
    compact_segments(folder)
    assert count_damaged(tmp_path) == 0


def count_damaged(directory):
    with open_cache(directory) as cache:
        assert find_clips(cache, range(10)) == set(range(1, 10))
        return cache.stats().damaged


def test_segments_in_use_are_left_alone(tmp_path):
    folder = fill_segments(tmp_path, 3)
    with open_cache(tmp_path) as writing:
        put(writing, [100])
        live = max(folder.glob("*.data"))
        assert compact_segments(folder) == 3
        assert live.exists()
        assert len(list_segments(folder)) == 2
        put(writing, [101])
        assert find_clips(writing, [0, 100, 101]) == {0, 100, 101}, "its readers go on with what was removed"
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(200)) == {*range(15), 100, 101}


def test_without_locks_nothing_is_merged(tmp_path, monkeypatch):
    folder = fill_segments(tmp_path, 3)
    before = list_names(folder)

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(segment.fcntl, "flock", refuse)
    assert compact_segments(folder) == 0
    assert list_names(folder) == before


def test_what_a_killed_writer_left_empty_is_removed(tmp_path):
    folder = fill(tmp_path, range(3))
    (folder / "0000-1-a.data").write_bytes(b"torn")
    (folder / "0001-1-b.data").touch()
    (folder / "0001-1-b.index").write_bytes(b"torn")
    before = list_names(fill(tmp_path, range(3)))
    assert compact_segments(folder) == 0
    assert list_names(folder) == [name for name in before if not name.startswith("000")]


@pytest.mark.parametrize("writes_before", [0, 2])
def test_a_full_disk_leaves_the_old_segments(tmp_path, monkeypatch, caplog, writes_before):
    monkeypatch.setattr(compaction, "_BLOCK_RECORDS", 7)
    folder = fill_segments(tmp_path, 3)
    before = list_names(folder)
    real = os.pwrite
    writes = []

    def fill_up(descriptor, content, offset):
        if len(writes) == writes_before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writes.append(offset)
        return real(descriptor, content, offset)

    monkeypatch.setattr(segment.os, "pwrite", fill_up)
    assert compact_segments(folder) == 0
    assert list_names(folder) == before
    assert len(read_warnings(caplog)) == 1


def test_everything_is_on_the_disk_before_the_old_segments_go(tmp_path, monkeypatch):
    folder = fill_segments(tmp_path, 2)
    events = []
    for name in ("flush", "append"):
        real = getattr(SegmentWriter, name)

        def note(self, *arguments, name=name, real=real):
            events.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(SegmentWriter, name, note)
    real_remove = compaction.remove_segment
    monkeypatch.setattr(
        compaction, "remove_segment", lambda *arguments: (events.append("remove"), real_remove(*arguments))
    )
    compact_segments(folder)
    assert events == ["append", "flush", "remove", "remove"]


def test_a_reader_that_listed_the_old_segments_finds_the_new_one(tmp_path, monkeypatch):
    folder = fill_segments(tmp_path, 3)
    real = DiskStore._find_reader
    merged = []

    def merge_first(self, name):
        if not merged:
            merged.append(name)
            assert compact_segments(folder) == 3
        return real(self, name)

    monkeypatch.setattr(DiskStore, "_find_reader", merge_first)
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(20)) == set(range(15))


def test_a_reader_that_opened_the_old_data_finds_the_new_segment(tmp_path, monkeypatch):
    folder = fill_segments(tmp_path, 3)
    real = segment.SegmentReader.load_entries
    merged = []

    def merge_first(self):
        if not merged:
            merged.append(self.name)
            assert compact_segments(folder) == 3
        return real(self)

    monkeypatch.setattr(segment.SegmentReader, "load_entries", merge_first)
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(20)) == set(range(15))


@pytest.mark.parametrize("moment", ["taken", "removed"])
def test_a_new_segment_that_is_taken_for_a_dead_one_is_made_again(tmp_path, monkeypatch, moment):
    """Between creating the file and locking it, another process may come."""
    real = segment._lock
    taken = []

    def take_first(descriptor):
        if not taken:
            (name,) = list_segments(tmp_path)
            other = segment.SegmentReader(tmp_path, name)
            taken.append(name)
            if moment == "taken":
                assert real(other._descriptor)
                assert real(descriptor) is False
                segment.remove_segment(tmp_path, name)
                return False
            other.close()
            assert compact_segments(tmp_path) == 0
        return real(descriptor)

    monkeypatch.setattr(segment, "_lock", take_first)
    writer = SegmentWriter(tmp_path)
    assert list_segments(tmp_path) == [writer.name] != taken
    writer.close()
    assert list_names(tmp_path) == []
