"""A table finds what a dictionary would, in less memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.cache import table
from myxtts.data.cache.records import ENTRY
from myxtts.data.cache.table import EntryTable

# Few different words, so that clips collide in the half that is sorted by.
ids = st.tuples(st.integers(0, 30), st.integers(0, 1))


def make_entries(batch, first_offset):
    entries = np.zeros(len(batch), ENTRY)
    entries["id"] = np.array(batch, np.uint64).reshape(-1, 2)
    entries["offset"] = np.arange(first_offset, first_offset + len(batch))
    return entries


def find_offset(found, clip):
    (row,) = found.find(np.array([clip], np.uint64))
    return None if row < 0 else int(found.get(np.array([row]))[0]["offset"][0])


@pytest.fixture(params=[0, 1024], ids=["sorts often", "sorts late"])
def min_recent(request, monkeypatch):
    monkeypatch.setattr(table, "_MIN_RECENT", request.param)


@pytest.mark.usefixtures("min_recent")
def test_the_last_entry_of_a_clip_counts():
    @given(st.lists(st.lists(ids, max_size=20), max_size=12))
    def check(batches):
        found, expected, offset = EntryTable(), {}, 0
        for number, batch in enumerate(batches):
            found.add(make_entries(batch, offset), number)
            for clip in batch:
                expected[clip[0]] = (clip[1], offset)
                offset += 1
        for word in range(31):
            for half in range(2):
                last = expected.get(word)
                assert find_offset(found, (word, half)) == (last[1] if last and last[0] == half else None)
        assert len(found) == len(expected) == len(found.list_rows())

    check()


@pytest.mark.usefixtures("min_recent")
def test_a_discarded_row_is_not_found_and_can_be_added_again():
    found = EntryTable()
    found.add(make_entries([(1, 1), (2, 2), (3, 3)], 0), 0)
    found.discard(int(found.find(np.array([[2, 2]], np.uint64))[0]))
    assert [find_offset(found, clip) for clip in [(1, 1), (2, 2), (3, 3)]] == [0, None, 2]
    assert len(found) == 2
    assert find_offset(found, (2, 2)) is None, "sorting must not bring it back"
    found.add(make_entries([(2, 2)], 9), 1)
    assert find_offset(found, (2, 2)) == 9
    assert len(found) == 3


def test_many_entries_take_less_than_a_hundred_bytes_each():
    found = EntryTable()
    words = np.random.default_rng(0).integers(0, 2**63, (100_000, 2)).astype(np.uint64)
    for start in range(0, len(words), 16):
        found.add(make_entries(words[start : start + 16].tolist(), start), 0)
    rows = found.find(words)
    np.testing.assert_array_equal(found.get(rows)[0]["offset"], np.arange(len(words)))
    arrays = [value for value in vars(found).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) < 100 * len(words)
    assert len(found._recent) < len(words) / 8
