"""What was written comes back exactly, or not at all."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from myxtts.data.cache.records import ENTRY, encode_records, seal_entries, unseal_entries
from tests.data_cache.builders import fill, find_clips, make_ids, open_cache

CLIPS = range(12)

arrays = st.sampled_from(["<i2", "<i4", "<f2", "<f4"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)


@given(st.lists(arrays, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_array_comes_back_with_its_type_shape_and_bits(features):
    with tempfile.TemporaryDirectory() as name:
        ids = make_ids(range(len(features)))
        with open_cache(Path(name)) as cache:
            cache.put_many(ids, features)
            written = cache.get_many(ids)
        with open_cache(Path(name)) as cache:
            read = cache.get_many(ids)
    for feature, *copies in zip(features, written, read, strict=True):
        for copy in copies:
            assert (copy.dtype, copy.shape, copy.tobytes()) == (feature.dtype, feature.shape, feature.tobytes())
            assert not copy.flags.writeable


def test_an_entry_has_a_fixed_size():
    # Files on users' disks are read by it.
    assert ENTRY.itemsize == 56


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_file_cut_at_any_byte_leaves_a_valid_prefix(data):
    suffix = data.draw(st.sampled_from([".data", ".index"]))
    with tempfile.TemporaryDirectory() as name:
        path = next(fill(Path(name), CLIPS).glob(f"*{suffix}"))
        content = path.read_bytes()
        kept = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:kept])
        with open_cache(Path(name)) as cache:
            found = find_clips(cache, CLIPS)
    if suffix == ".index":
        whole = kept // ENTRY.itemsize
    else:
        ends = np.cumsum([2 * (1 + clip % 97) for clip in CLIPS])
        whole = int(np.searchsorted(ends, kept, side="right"))
    assert found == set(range(whole))


@given(
    st.sampled_from([".data", ".index"]), st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=6)
)
@settings(max_examples=150, deadline=None)
def test_flipped_bits_never_give_wrong_data(suffix, flips):
    with tempfile.TemporaryDirectory() as name:
        path = next(fill(Path(name), CLIPS).glob(f"*{suffix}"))
        content = bytearray(path.read_bytes())
        for place, bit in flips:
            content[place % len(content)] ^= 1 << bit
        is_changed = content != path.read_bytes()
        path.write_bytes(content)
        with open_cache(Path(name)) as cache:
            found = find_clips(cache, CLIPS)
            damaged = cache.stats().damaged
    # A bit may be flipped back by the next flip.
    assert (len(found) < len(CLIPS)) == is_changed
    assert damaged == len(CLIPS) - len(found)


@given(st.binary(max_size=500))
def test_noise_is_never_an_entry(content):
    entries, damaged = unseal_entries(content, data_bytes=2**40)
    assert len(entries) == 0
    assert damaged == len(content) // ENTRY.itemsize


def test_a_run_of_zeros_is_never_an_entry():
    # What a file system leaves after a power cut.
    assert unseal_entries(bytes(10 * ENTRY.itemsize), data_bytes=2**40)[1] == 10


def test_an_entry_that_points_outside_its_file_is_damaged():
    payloads, entries = encode_records(make_ids([0, 1]), [np.zeros(4, np.int16), np.zeros(4, np.int16)])
    sound, damaged = unseal_entries(seal_entries(entries), data_bytes=len(payloads) - 1)
    assert len(sound) == damaged == 1
    assert sound["offset"] == [0]
