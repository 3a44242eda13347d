import numpy as np
import pytest

from myxtts.data.positions import Position
from myxtts.data.sampler import EMPTY_ROW
from tests.data.reading import make_sampler, open_reader
from tests.data.test_reader import assert_empty


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_slices_are_those_of_the_sampler_and_hold_every_row_once(parts, lj):
    sampler = make_sampler(lj.corpus, batch_size=5)
    micro_batch = sampler.make_batch(2).micro_batches[0]
    with open_reader(lj, sampler=sampler) as reader:
        batch = reader.read(Position(2))

    slices = [batch.slice_rows(part, parts) for part in range(parts)]

    for part, own in enumerate(slices):
        planned = micro_batch.slice_rows(part, parts)
        assert own.clips_B.tolist() == planned.clips.tolist()
        assert own.first_row == planned.first_row
        assert own.totals == batch.totals
        for row in np.flatnonzero(own.clips_B == EMPTY_ROW):
            assert_empty(own, row)
    joined = np.concatenate([own.wav_BS[own.weights_B > 0] for own in slices])
    assert np.array_equal(joined, batch.wav_BS[batch.weights_B > 0])


def test_a_slice_that_does_not_exist_is_refused(lj):
    with open_reader(lj) as reader, pytest.raises(IndexError, match="slice 2 of 2"):
        reader.read(Position(0)).slice_rows(2, 2)
