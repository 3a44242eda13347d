"""Voice prompts: which part of a clip, and the cutting."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from myxtts.audio.augment import choose_evaluation_slices, draw_slices
from myxtts.audio.on_device import cut_slices


def test_a_clip_shorter_than_its_slice_gives_half_of_itself() -> None:
    clips = np.array([11025, 50001, 66149])
    slices = draw_slices(clips, seed=1, epoch=2, sample_ids=[7, 8, 9])
    np.testing.assert_array_equal(slices.lengths, clips // 2)
    assert np.all(slices.starts + slices.lengths <= clips)


def test_a_slice_depends_on_seed_epoch_and_sample_only() -> None:
    clips = np.array([200000, 210000, 220000])
    together = draw_slices(clips, seed=3, epoch=4, sample_ids=[10, 20, 30])
    alone = draw_slices(clips[1:2], seed=3, epoch=4, sample_ids=[20])
    assert (alone.starts[0], alone.lengths[0]) == (together.starts[1], together.lengths[1])
    for other in ({"seed": 4, "epoch": 4}, {"seed": 3, "epoch": 5}):
        changed = draw_slices(clips, **other, sample_ids=[10, 20, 30])
        assert np.all(changed.starts != together.starts)


def test_evaluation_hears_the_start() -> None:
    slices = choose_evaluation_slices([200000, 99225, 99224])
    assert slices.starts.tolist() == [0, 0, 0]
    assert slices.lengths.tolist() == [99225, 99225, 49612]
    assert (slices.starts.tolist(), slices.lengths.tolist()) == ([0, 0, 0], [99225, 99225, 49612])


def test_slices_are_cut_out_and_padded_with_zeros() -> None:
    wav = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    starts, lengths = np.int32([0, 990, 300]), np.int32([400, 10, 0])
    cut = tf.function(lambda w, s, n: cut_slices(w, s, n, samples=400))(wav, starts, lengths).numpy()
    assert cut.shape == (3, 400)
    np.testing.assert_array_equal(cut[0], wav[0, :400])
    np.testing.assert_array_equal(cut[1, :10], wav[1, 990:])
    assert not cut[1, 10:].any()
    assert not cut[2].any()
