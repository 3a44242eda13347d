"""A cache gives back what it was given, says what it could not keep, and never gives anything else."""

import logging
import time

import numpy as np
import pytest

from myxtts.data.cache import FeatureCache, feature_cache, identify_files
from myxtts.data.cache.memory_store import RECORD_OVERHEAD_BYTES
from myxtts.data.cache.segment import SegmentReader
from tests.data_cache.builders import (
    fill,
    find_clips,
    list_names,
    make_codes,
    make_ids,
    make_key,
    open_cache,
    put,
    read_warnings,
)
from tests.support.processes import run_code


@pytest.mark.parametrize("policy", ["memory", "disk"])
def test_what_was_put_can_be_had_at_once_and_in_any_order(tmp_path, policy):
    with open_cache(tmp_path, policy) as cache:
        assert find_clips(cache, range(20)) == set()
        put(cache, range(0, 20, 2))
        assert find_clips(cache, [19, 4, 4, 3, 18, 0]) == {0, 4, 18}
        stats = cache.stats()
    assert (stats.policy, stats.records, stats.hits, stats.misses) == (policy, 10, 4, 22)


def test_off_keeps_nothing(tmp_path):
    with open_cache(tmp_path / "cache", "off") as cache:
        put(cache, range(5))
        assert find_clips(cache, range(5)) == set()
        assert cache.stats().records == cache.stats().hits == 0
    assert list_names(tmp_path) == []


def test_memory_leaves_nothing_on_disk(tmp_path):
    with open_cache(tmp_path / "cache", "memory") as cache:
        put(cache, range(5))
    assert list_names(tmp_path) == []


def test_disk_keeps_for_the_next_run(tmp_path):
    fill(tmp_path, range(7))
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(9)) == set(range(7))


def test_a_run_that_only_reads_leaves_no_file(tmp_path):
    folder = fill(tmp_path, range(7))
    before = list_names(folder)
    with open_cache(tmp_path) as cache:
        find_clips(cache, range(7))
        put(cache, range(7))
    assert list_names(folder) == before


def test_clips_are_found_by_number_through_the_ids_of_a_corpus(tmp_path):
    paths = [b"wavs/%d.wav" % clip for clip in range(50)]
    ids = identify_files(paths, np.full(50, 1000), np.full(50, 5))
    numbers = np.array([31, 7, 44])
    with open_cache(tmp_path) as cache:
        cache.put_many(ids[numbers], [make_codes(clip) for clip in numbers])
        codes = cache.get_many(ids[[44, 30]])
    np.testing.assert_array_equal(codes[0], make_codes(44))
    assert codes[1] is None


def test_the_first_feature_of_a_clip_stays(tmp_path):
    with open_cache(tmp_path) as cache:
        cache.put_many(make_ids([1, 1]), [make_codes(1), make_codes(1, salt=5)])
        put(cache, [1, 2], salt=9)
        assert find_clips(cache, [1]) == {1}
        assert find_clips(cache, [2], salt=9) == {2}
        size = cache.stats().disk_bytes
    assert size == make_codes(1).nbytes + make_codes(2).nbytes + 2 * 56, "nothing is written twice"


def test_another_key_is_never_a_hit(tmp_path):
    fill(tmp_path, range(5))
    other = make_key(encoder_digest="b" * 64)
    with FeatureCache.open("disk", tmp_path, other) as cache:
        assert find_clips(cache, range(5)) == set()
        put(cache, range(5), salt=1)
    with FeatureCache.open("disk", tmp_path, other) as cache:
        assert find_clips(cache, range(5), salt=1) == set(range(5))
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(5)) == set(range(5))


def test_auto_has_to_be_decided_before(tmp_path):
    with pytest.raises(AssertionError):
        open_cache(tmp_path, "auto")


@pytest.mark.parametrize("feature", [np.zeros(3), np.zeros(3, np.int64), np.zeros((1, 1, 1, 1), np.int16)])
def test_a_feature_that_cannot_be_written_is_refused(tmp_path, feature):
    with open_cache(tmp_path, "memory") as cache, pytest.raises(AssertionError):
        cache.put_many(make_ids([0]), [feature])


def test_a_view_is_kept_as_it_looks(tmp_path):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    with open_cache(tmp_path) as cache:
        cache.put_many(make_ids([0]), [matrix.T[::2]])
        matrix[:] = 0
        (found,) = cache.get_many(make_ids([0]))
    np.testing.assert_array_equal(found, [[0, 4, 8], [2, 6, 10]])


class TestMemory:
    """First come, first kept."""

    def test_full_memory_keeps_what_came_first(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        each = make_codes(0).nbytes + RECORD_OVERHEAD_BYTES
        with open_cache(tmp_path, "memory", memory_limit_bytes=10 * each) as cache:
            for epoch in range(3):
                for clip in range(0, 40 * 97, 97):
                    if clip not in find_clips(cache, [clip]):
                        put(cache, [clip])
                assert cache.stats().hits == 10 * epoch, "the same clips hit in every epoch"
            stats = cache.stats()
        assert stats.records == 10
        assert stats.memory_bytes == 10 * each
        assert stats.not_kept == 3 * 30
        assert [record.getMessage() for record in caplog.records if "full" in record.getMessage()] == [
            "The feature cache is full: 10 clips take the 0 MB of memory it may use. Others are prepared every time."
        ]

    def test_no_limit_is_above_half_of_what_is_free(self, tmp_path, monkeypatch):
        monkeypatch.setattr(feature_cache, "read_free_memory_bytes", lambda: 2000)
        for asked in (None, 10**9):
            with open_cache(tmp_path, "memory", memory_limit_bytes=asked) as cache:
                for clip in range(0, 97 * 20, 97):
                    put(cache, [clip])
                assert cache.stats().memory_bytes == 7 * (2 + RECORD_OVERHEAD_BYTES)

    def test_what_is_accounted_is_what_is_taken(self):
        taken, accounted = run_code("""
import numpy as np
from pathlib import Path
from myxtts.data.cache import FeatureCache
from tests.data_cache.builders import make_key
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
words = np.random.default_rng(0).integers(0, 2**63, (60_000, 2)).astype(np.uint64)
codes = [np.arange(150, dtype=np.int16)] * 16
with FeatureCache.open("memory", Path("unused"), make_key()) as cache:
    before = resident()
    for start in range(0, len(words), 16):
        cache.put_many(words[start:start + 16], codes)
    report([resident() - before, cache.stats().memory_bytes])
""")
        assert taken < 1.15 * accounted


class TestDamage:
    """A record that is not what was written is a miss, and is written anew."""

    def damage_first_payload(self, folder):
        path = next(folder.glob("*.data"))
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)

    def test_it_is_reported_once_and_written_anew(self, tmp_path, caplog):
        folder = fill(tmp_path, range(10))
        self.damage_first_payload(folder)
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(10)) == set(range(1, 10))
            assert find_clips(cache, [0]) == set(), "a miss stays a miss"
            put(cache, [0])
            assert find_clips(cache, range(10)) == set(range(10))
            assert (cache.stats().damaged, cache.stats().misses) == (1, 2)
        assert read_warnings(caplog) == [
            f"{folder}: damaged records. Their features are prepared and written anew; further ones are only counted."
        ]

    def test_the_new_copy_is_found_by_the_next_run(self, tmp_path):
        self.damage_first_payload(fill(tmp_path, range(10)))
        with open_cache(tmp_path) as cache:
            find_clips(cache, [0])
            put(cache, [0])
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(10)) == set(range(10))
            assert cache.stats().damaged == 0

    def test_many_damaged_records_are_one_warning_and_counted_at_the_end(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        path = next(fill(tmp_path, range(10)).glob("*.data"))
        path.write_bytes(b"\xff" * path.stat().st_size)
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(10)) == set()
            assert cache.stats().damaged == 10
        assert len(read_warnings(caplog)) == 1
        assert caplog.messages[-1] == f"{path.parent}: 10 damaged records were found."

    def test_a_disk_that_fails_to_read_is_a_miss(self, tmp_path, monkeypatch):
        fill(tmp_path, range(3))

        def fail(self, offset, size_bytes):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(SegmentReader, "read", fail)
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(3)) == set()
            assert cache.stats().damaged == 3

    def test_a_data_file_cut_while_it_is_open_is_a_miss(self, tmp_path):
        folder = fill(tmp_path, range(3))
        with open_cache(tmp_path) as cache:
            next(folder.glob("*.data")).write_bytes(b"")
            assert find_clips(cache, range(3)) == set()

    def test_a_lost_index_is_an_empty_segment(self, tmp_path):
        next(fill(tmp_path, range(3)).glob("*.index")).unlink()
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(3)) == set()


class TestSharing:
    """Several caches on one generation."""

    def test_each_sees_what_the_other_wrote_after_a_refresh(self, tmp_path):
        with open_cache(tmp_path) as first, open_cache(tmp_path) as second:
            for start in (0, 10):
                put(first, range(start, start + 3))
                put(second, range(start + 5, start + 8))
                assert find_clips(second, range(start, start + 10)) == set(range(start + 5, start + 8))
                first.refresh()
                second.refresh()
                assert find_clips(first, range(start, start + 10)) == find_clips(second, range(start, start + 10))
                assert len(find_clips(first, range(start, start + 10))) == 6
            assert first.stats().records == second.stats().records == 12
            assert first.stats().disk_bytes == second.stats().disk_bytes

    def test_an_entry_half_written_by_another_is_read_when_it_is_whole(self, tmp_path):
        path = next(fill(tmp_path, range(3)).glob("*.index"))
        content = path.read_bytes()
        path.write_bytes(content[:-10])
        with open_cache(tmp_path) as cache:
            assert find_clips(cache, range(3)) == {0, 1}
            path.write_bytes(content)
            cache.refresh()
            assert find_clips(cache, range(3)) == {0, 1, 2}
            assert cache.stats().damaged == 0


def test_closing_twice_is_harmless(tmp_path):
    cache = open_cache(tmp_path)
    put(cache, [1])
    cache.close()
    cache.close()


def test_opening_a_corpus_of_usual_size_is_quick_and_reads_no_payload(tmp_path, monkeypatch):
    fill(tmp_path, range(13_100))
    monkeypatch.setattr(SegmentReader, "read", None)
    start = time.process_time()
    with open_cache(tmp_path) as cache:
        assert cache.stats().records == 13_100
    assert time.process_time() - start < 0.5


def test_tensorflow_is_not_imported():
    assert run_code("import myxtts.data.cache\nreport('tensorflow' in sys.modules)") is False
