"""An id is the recording's: it moves with the corpus and changes with the file."""

import numpy as np

from myxtts.data.cache import identify_files

PATHS = [b"wavs/a.wav", b"wavs/b.wav", b"wavs/c.wav"]
SIZES = np.array([100, 100, 300])
TIMES = np.array([7, 7, 9])
SECOND = np.array([0, 1, 0])


def test_files_of_equal_size_and_time_have_different_ids():
    ids = identify_files(PATHS, SIZES, TIMES)
    assert ids.shape == (3, 2)
    assert ids.dtype == np.uint64
    assert len(np.unique(ids[:, 0])) == len(np.unique(ids[:, 1])) == 3


def test_only_the_clip_that_changed_gets_another_id():
    ids = identify_files(PATHS, SIZES, TIMES)
    for changed in (
        identify_files([PATHS[0], b"wavs/B.wav", PATHS[2]], SIZES, TIMES),
        identify_files(PATHS, SIZES + SECOND, TIMES),
        identify_files(PATHS, SIZES, TIMES + SECOND),
    ):
        assert (changed == ids).all(axis=1).tolist() == [True, False, True]


def test_an_id_does_not_depend_on_the_other_clips():
    ids = identify_files(PATHS, SIZES, TIMES)
    np.testing.assert_array_equal(identify_files(PATHS[1:], SIZES[1:], TIMES[1:]), ids[1:])


def test_ids_never_change_between_versions():
    # Others would make every cache on users' disks worthless without a word.
    assert identify_files([b"a"], np.array([1]), np.array([2])).tolist() == [
        [16137488292440682819, 16583288466317886786]
    ]


def test_no_clips_have_no_ids():
    assert identify_files([], np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0, 2)
