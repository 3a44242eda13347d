"""A disk that takes no more: one warning, the run goes on, and nothing half-written stays."""

import errno
import os

import pytest

from myxtts.data.cache import disk_store, segment
from myxtts.data.cache.records import ENTRY, unseal_entries
from tests.data_cache.builders import fill, find_clips, list_names, make_key, open_cache, put, read_warnings
from tests.support.processes import run_code


def count_whole_records(folder):
    """Records in a folder's segments. Fails when a byte is there that belongs to no record."""
    total = 0
    for path in folder.glob("*.data"):
        content = path.with_suffix(".index").read_bytes()
        entries, damaged = unseal_entries(content, path.stat().st_size)
        assert damaged == 0
        assert len(content) == len(entries) * ENTRY.itemsize
        assert path.stat().st_size == entries["size_bytes"].sum()
        total += len(entries)
    return total


LIMITED = """
import logging, resource
from pathlib import Path
from tests.data_cache.builders import find_clips, open_cache, put
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("myxtts").addHandler(handler)
with open_cache(Path({directory!r}), memory_limit_bytes={memory}) as cache:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    for clip in range(0, 1000, 5):
        put(cache, range(clip, clip + 5))
    stats = cache.stats()
    found = sorted(find_clips(cache, range(1000)))
report({{"warnings": warnings, "found": found, "not_kept": stats.not_kept, "memory_bytes": stats.memory_bytes}})
"""


@pytest.mark.parametrize(("limit", "is_empty"), [(9999, False), (100, True)], ids=["data", "first index"])
def test_a_real_limit_of_the_kernel_stops_the_writing_and_not_the_run(tmp_path, limit, is_empty):
    code = LIMITED.format(directory=str(tmp_path), limit=limit, memory=0)
    result = run_code(code)
    folder = tmp_path / make_key().folder_name
    kept = count_whole_records(folder)
    assert result["found"] == list(range(kept))
    assert (kept == 0) == is_empty
    assert kept < 1000
    assert result["not_kept"] == 1000 - kept
    assert result["memory_bytes"] == 0
    assert result["warnings"] == [
        f"{folder}: no more features can be written (File too large). The run goes on without writing any; those that are "
        "there are used."
    ]
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(1000)) == set(range(kept))


def test_memory_takes_over_when_it_is_allowed_to(tmp_path):
    result = run_code(LIMITED.format(directory=str(tmp_path), limit=9999, memory=2**20))
    kept = count_whole_records(tmp_path / make_key().folder_name)
    assert 0 < kept < 1000
    assert result["found"] == list(range(1000))
    assert result["not_kept"] == 0
    assert result["memory_bytes"] > 0
    assert len(result["warnings"]) == 1


@pytest.mark.parametrize("write", [0, 1, 2, 3], ids=["first data", "first index", "later data", "later index"])
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, caplog, write, part):
    real = os.pwrite
    writes = []

    def fill_up(descriptor, content, offset):
        writes.append(offset)
        # A disk that is nearly full takes a part first, and refuses the rest.
        if len(writes) == write + 1 and part:
            return real(descriptor, content[: int(len(content) * part)], offset)
        if len(writes) > write:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content, offset)

    monkeypatch.setattr(segment.os, "pwrite", fill_up)
    with open_cache(tmp_path, memory_limit_bytes=0) as cache:
        for start in (0, 10, 20):
            put(cache, range(start, start + 10))
        kept = set(range(write // 2 * 10))
        assert find_clips(cache, range(30)) == kept
        assert cache.stats().not_kept == 30 - len(kept)
    folder = tmp_path / make_key().folder_name
    assert count_whole_records(folder) == len(kept)
    assert len(list_names(folder)) == (3 if kept else 1), "an empty segment is not kept"
    assert len(read_warnings(caplog)) == 1
    assert len(writes) == write + 1 + bool(part), "writing is not tried again"


def test_the_last_of_the_disk_is_left_to_checkpoints(tmp_path, monkeypatch, caplog):
    free = [1000]
    monkeypatch.setattr(disk_store, "read_free_disk_bytes", lambda folder: free[0])
    with open_cache(tmp_path, memory_limit_bytes=0) as cache:
        put(cache, [0, 1])
        free[0] = 100
        put(cache, [2, 3])
        assert find_clips(cache, range(4)) == {0, 1}
    (warning,) = read_warnings(caplog)
    assert "No space left on device" in warning


def test_no_room_for_the_index_file_leaves_no_data_file(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, *arguments):
        if str(path).endswith(".index"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments)

    monkeypatch.setattr(segment.os, "open", refuse)
    with open_cache(tmp_path, memory_limit_bytes=0) as cache:
        put(cache, [0])
        assert cache.stats().not_kept == 1
    assert list_names(tmp_path / make_key().folder_name) == ["key.json"]


def test_a_cache_that_may_only_be_read_serves(tmp_path, monkeypatch, caplog):
    folder = fill(tmp_path, range(5))
    before = list_names(folder)

    def refuse(folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Permissions do not stop the tests of a superuser, so the refusal is played.
    monkeypatch.setattr(disk_store, "SegmentWriter", refuse)
    with open_cache(tmp_path) as cache:
        put(cache, range(10))
        assert find_clips(cache, range(10)) == set(range(10))
    assert list_names(folder) == before
    assert len(read_warnings(caplog)) == 1
