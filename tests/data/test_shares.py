"""Readers of several workers: each reads rows of its own, and together they are the whole batch."""

import numpy as np
import pytest

from myxtts.data.sampler import EMPTY_ROW, WHOLE, RowShare
from tests.data.reading import CountingEngine, make_sampler, open_reader, read_steps

pytestmark = pytest.mark.usefixtures("leaves_nothing")


SLICES = ("slice_starts_B", "slice_lengths_B")


def read_share(texted, share):
    sampler, engine = make_sampler(texted, accumulation=2), CountingEngine()
    with open_reader(texted, engine, sampler=sampler, share=share, end_step=sampler.steps_per_epoch) as reader:
        return list(read_steps(reader, 0, sampler.steps_per_epoch)), engine.files


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_shares_are_disjoint_and_join_to_the_batch(lj, parts):
    whole, all_files = read_share(lj, WHOLE)
    shares = [read_share(lj, RowShare(part, parts)) for part in range(parts)]
    for number, batch in enumerate(whole):
        own = [batches[number] for batches, _ in shares]
        assert len({each.wav_BS.shape for each in own}) == 1, "all have one shape"
        for name in ("clips_B", "wav_BS", "wav_lengths_B", "text_BL", "text_lengths_B", "weights_B", *SLICES):
            joined = np.concatenate([getattr(each, name) for each in own])[: batch.rows]
            np.testing.assert_array_equal(joined, getattr(batch, name), err_msg=name)
    read = [file for _, files in shares for file in files]
    assert sorted(map(str, read)) == sorted(map(str, all_files)), "no clip is read twice, and none is left out"


def test_a_share_may_be_empty(lj):
    """More workers than rows: those who have none still take part in every step."""
    batches, files = read_share(lj, RowShare(63, 64))
    whole, _ = read_share(lj, WHOLE)
    assert len(batches) == len(whole)
    assert all((batch.clips_B == EMPTY_ROW).all() for batch in batches)
    assert files == []
