"""Augmentation: off changes nothing, on does what it says, and every row stands for itself."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.augment import (
    SPEED_STEPS,
    AugmentDraws,
    AugmentSettings,
    Purpose,
    choose_evaluation_slices,
    draw_augmentation,
    draw_integers,
    draw_slices,
    draw_words,
)
from myxtts.audio.on_device import add_noise, augment_wav, change_speed, cut_slices, make_noise, mask_mel

OFF = AugmentSettings()
ALL_ON = AugmentSettings(gain_db=6.0, noise_db=-40.0, speed_change=0.1, frame_masks=2, band_masks=2)


def make_wav(rows: int, samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, samples)) * 0.1).astype(np.float32)


def draw(settings: AugmentSettings, *sample_ids: int, epoch: int = 0) -> AugmentDraws:
    return draw_augmentation(settings, seed=1, epoch=epoch, sample_ids=list(sample_ids))


def test_off_is_the_default_and_changes_no_bit() -> None:
    wav, mel = tf.constant(make_wav(2, 500)), tf.constant(make_wav(2, 800).reshape(2, 10, 80))
    draws = draw(OFF, 1, 2)
    same_wav, same_lengths = augment_wav(wav, [500, 400], OFF, draws)
    assert same_wav is wav
    assert same_lengths == [500, 400]
    assert mask_mel(mel, [10, 9], OFF, draws, tf.zeros(80)) is mel
    assert draws.gains.tolist() == [1, 1]
    assert draws.noise_levels.tolist() == [0, 0]
    assert draws.speed_steps.tolist() == [SPEED_STEPS, SPEED_STEPS]


def test_draws_depend_on_seed_epoch_and_sample_only() -> None:
    together, alone, later = draw(ALL_ON, 4, 5, 6), draw(ALL_ON, 5), draw(ALL_ON, 5, epoch=1)
    for field in dataclasses.fields(AugmentDraws):
        np.testing.assert_array_equal(getattr(alone, field.name)[0], getattr(together, field.name)[1])
    assert later.gains[0] != alone.gains[0]
    assert later.noise_keys[0] != alone.noise_keys[0]


def test_gain_scales_and_clips() -> None:
    wav = tf.constant([[0.1, -0.4, 0.9]])
    settings = AugmentSettings(gain_db=6.0)
    draws = dataclasses.replace(draw(settings, 1), gains=np.float32([2.0]))
    louder, _ = augment_wav(wav, [3], settings, draws)
    np.testing.assert_allclose(louder, [[0.2, -0.8, 1.0]], rtol=1e-6)


def test_noise_is_white_with_the_level_asked_for_and_spares_the_padding() -> None:
    noise = make_noise(np.int32([1, 2]), 40000).numpy()
    np.testing.assert_allclose(noise.std(axis=1), 1, atol=0.02)
    np.testing.assert_allclose(noise.mean(axis=1), 0, atol=0.02)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[0, 1:], noise[0, :-1])[0, 1]) < 0.02
    wav = np.zeros((1, 40000), np.float32)
    noisy = add_noise(wav, [30000], np.float32([0.01]), np.int32([1])).numpy()
    assert noisy[0, :30000].std() == pytest.approx(0.01, rel=0.02)
    assert not noisy[0, 30000:].any()


def test_noise_is_the_same_for_ever() -> None:
    expected = [0.54793578, 0.38770384, 0.15701762, 0.24212334]
    np.testing.assert_allclose(make_noise(np.int32([12345]), 4).numpy()[0], expected, rtol=1e-6)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.07])
def test_speed_changes_pitch_and_length_of_a_tone(speed: float) -> None:
    samples, hz = 30000, 0.02
    tone = 0.5 * np.sin(2 * np.pi * hz * np.arange(samples)).astype(np.float32)
    steps = round(speed * SPEED_STEPS)
    output, lengths = change_speed(tone[None], [samples], np.int32([steps]), 34000, 1.1)
    length = int(lengths[0])
    assert length == -(-samples * SPEED_STEPS // steps)
    expected = 0.5 * np.sin(2 * np.pi * hz * steps / SPEED_STEPS * np.arange(length))
    np.testing.assert_allclose(output[0, 50 : length - 50], expected[50:-50], atol=1e-3)
    assert not output[0, length:].numpy().any()


def test_the_buffer_holds_the_slowest_clip() -> None:
    settings = AugmentSettings(speed_change=0.25)
    slowest = dataclasses.replace(draw(settings, 1), speed_steps=np.int32([round(0.75 * SPEED_STEPS)]))
    output, lengths = augment_wav(make_wav(1, 3000), [3000], settings, slowest)
    assert output.shape == (1, 4096)
    assert lengths.numpy().tolist() == [4000]


def test_a_clip_is_augmented_the_same_alone_and_among_others() -> None:
    clip = make_wav(1, 2000)
    alone, lengths = augment_wav(clip, [2000], ALL_ON, draw(ALL_ON, 7))
    batch = make_wav(3, 5000, seed=9)
    batch[1, :2000] = clip
    among, all_lengths = augment_wav(batch, [5000, 2000, 4000], ALL_ON, draw(ALL_ON, 3, 7, 8))
    length = int(lengths[0])
    assert int(all_lengths[1]) == length
    np.testing.assert_array_equal(among[1, :length], alone[0, :length])
    assert not among[1, length:].numpy().any()


def test_masks_silence_frames_and_bands_inside_the_clip() -> None:
    settings = AugmentSettings(frame_masks=1, band_masks=1)
    draws = dataclasses.replace(
        draw(settings, 1),
        frame_mask_sizes=np.int32([[3]]),
        frame_mask_starts=np.float32([[0.5]]),
        band_mask_sizes=np.int32([[2]]),
        band_mask_starts=np.float32([[0.0]]),
    )
    masked = mask_mel(tf.ones((1, 12, 80)), tf.constant([10]), settings, draws, tf.fill([80], -5.0)).numpy()[0]
    expected = np.ones((12, 80))
    expected[4:7] = -5
    expected[:10, :2] = -5
    np.testing.assert_array_equal(masked, expected)


def test_draws_are_the_same_for_ever_and_every_part_of_their_key_counts() -> None:
    words = draw_words(1, 2, [3, -4], Purpose.GAIN, 2)
    assert words.tolist() == [[4252809006740281357, 3604484933098771104], [9523093161614383503, 9446724450717765042]]
    purposes = (Purpose.GAIN, Purpose.SPEED)
    keys = list(itertools.product((0, 1, 2**63 - 1), (0, 1), (0, 1, 2**40), purposes))
    assert len({draw_words(seed, epoch, [sample], purpose)[0, 0] for seed, epoch, sample, purpose in keys}) == len(keys)


def test_integers_are_spread_evenly_over_their_limits() -> None:
    numbers = draw_integers(0, 0, np.arange(6000), Purpose.SLICE_START, 3, 8)[:, 0]
    counts = np.bincount(numbers, minlength=9)
    assert not counts[:3].any()
    assert np.all(np.abs(counts[3:] - 1000) < 120)
    own = draw_integers(0, 0, [1, 2, 3], Purpose.SLICE_START, 0, np.array([[0], [5], [0]]))
    assert own[0, 0] == own[2, 0] == 0


def test_a_slice_is_half_of_a_short_clip_and_depends_on_seed_epoch_and_sample_only() -> None:
    clips = np.array([11025, 50001, 66149])
    slices = draw_slices(clips, seed=1, epoch=2, sample_ids=[7, 8, 9])
    np.testing.assert_array_equal(slices.lengths, clips // 2)
    assert np.all(slices.starts + slices.lengths <= clips)
    clips = np.array([200000, 210000, 220000])
    together = draw_slices(clips, seed=3, epoch=4, sample_ids=[10, 20, 30])
    alone = draw_slices(clips[1:2], seed=3, epoch=4, sample_ids=[20])
    assert (alone.starts[0], alone.lengths[0]) == (together.starts[1], together.lengths[1])
    for other in ({"seed": 4, "epoch": 4}, {"seed": 3, "epoch": 5}):
        assert np.all(draw_slices(clips, **other, sample_ids=[10, 20, 30]).starts != together.starts)
    validation = choose_evaluation_slices([200000, 99225, 99224])
    assert (validation.starts.tolist(), validation.lengths.tolist()) == ([0, 0, 0], [99225, 99225, 49612])


def test_slices_are_cut_out_and_padded_with_zeros() -> None:
    wav = make_wav(3, 1000)
    starts, lengths = np.int32([0, 990, 300]), np.int32([400, 10, 0])
    cut = tf.function(lambda w, s, n: cut_slices(w, s, n, samples=400))(wav, starts, lengths).numpy()
    assert cut.shape == (3, 400)
    np.testing.assert_array_equal(cut[0], wav[0, :400])
    np.testing.assert_array_equal(cut[1, :10], wav[1, 990:])
    assert not cut[1, 10:].any()
    assert not cut[2].any()
