"""Random numbers that must never change."""

from __future__ import annotations

import numpy as np

from myxtts.audio.augment import Purpose, draw_integers, draw_words


def test_draws_are_the_same_for_ever() -> None:
    words = draw_words(1, 2, [3, -4], Purpose.GAIN, 2)
    assert words.tolist() == [
        [4252809006740281357, 3604484933098771104],
        [9523093161614383503, 9446724450717765042],
    ]


def test_every_part_of_the_key_counts() -> None:
    keys = [
        (seed, epoch, sample, purpose)
        for seed in (0, 1, 2**63 - 1)
        for epoch in (0, 1)
        for sample in (0, 1, 2**40)
        for purpose in (Purpose.GAIN, Purpose.SPEED)
    ]
    words = {draw_words(seed, epoch, [sample], purpose)[0, 0] for seed, epoch, sample, purpose in keys}
    assert len(words) == len(keys)


def test_a_sample_draws_the_same_in_any_company() -> None:
    together = draw_words(5, 6, [10, 11, 12, 13], Purpose.NOISE, 3)
    np.testing.assert_array_equal(draw_words(5, 6, [12], Purpose.NOISE, 3)[0], together[2])
    np.testing.assert_array_equal(draw_words(5, 6, [12], Purpose.NOISE, 1)[0], together[2, :1])


def test_integers_are_spread_evenly_over_their_limits() -> None:
    numbers = draw_integers(0, 0, np.arange(6000), Purpose.SLICE_START, 3, 8)[:, 0]
    counts = np.bincount(numbers, minlength=9)
    assert not counts[:3].any()
    assert np.all(np.abs(counts[3:] - 1000) < 120)
    own = draw_integers(0, 0, [1, 2, 3], Purpose.SLICE_START, 0, np.array([[0], [5], [0]]))
    assert own[0, 0] == own[2, 0] == 0
