"""What is drawn for a clip: small changes that make few recordings go further, and which part of it is heard as its voice prompt.

Changes are off by default. What happens to a clip is a function of (seed, epoch, sample id) alone; `on_device` does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from myxtts.hashing import hash_words
from myxtts.units import MAX_SLICE_SAMPLES, MEAN_SLICE_SAMPLES, MIN_SLICE_SAMPLES


class Purpose(IntEnum):
    """What a number is drawn for. Numbers for different purposes are independent. Values are never reused."""

    SLICE_LENGTH = 1
    SLICE_START = 2
    GAIN = 3
    NOISE_LEVEL = 4
    NOISE = 5
    SPEED = 6
    FRAME_MASK_SIZE = 7
    FRAME_MASK_START = 8
    BAND_MASK_SIZE = 9
    BAND_MASK_START = 10
    SEGMENT_START = 11
    PROMPT_CLIP = 12


def draw_words(seed: int, epoch: int, sample_ids: ArrayLike, purpose: Purpose, count: int = 1) -> NDArray[np.uint64]:
    """(samples, count) random 64-bit words."""
    samples_N1 = np.asarray(sample_ids, np.int64)[:, None]
    return hash_words(seed, epoch, samples_N1, int(purpose), np.arange(count)[None, :])


def draw_integers(
    seed: int, epoch: int, sample_ids: ArrayLike, purpose: Purpose, low: ArrayLike, high: ArrayLike, count: int = 1
) -> NDArray[np.int64]:
    """(samples, count) whole numbers from `low` to `high`, both included; limits may differ by sample, as (samples, 1)."""
    low, high = np.asarray(low, np.int64), np.asarray(high, np.int64)
    words = draw_words(seed, epoch, sample_ids, purpose, count)
    # The remainder favours small numbers by less than one part in 2^40 for any length of audio.
    numbers: NDArray[np.int64] = (words % (high - low + 1).astype(np.uint64)).astype(np.int64) + low
    return numbers


def draw_fractions(
    seed: int, epoch: int, sample_ids: ArrayLike, purpose: Purpose, count: int = 1
) -> NDArray[np.float64]:
    """(samples, count) numbers in [0, 1)."""
    words = draw_words(seed, epoch, sample_ids, purpose, count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


NOISE_RANGE_DB = 20.0
"""Noise is drawn up to this much below the loudest allowed."""

SPEED_STEPS = 1 << 16
"""Speeds are whole multiples of this fraction, so that positions in a clip are exact."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How far augmentation may go. The defaults change nothing."""

    gain_db: float = 0.0
    """Louder or softer by up to this."""
    noise_db: float | None = None
    """White noise of up to this level, relative to full scale. Not relative to the clip: the sum that a clip's level needs
    would make its bits depend on its padding."""
    speed_change: float = 0.0
    """Faster or slower, and higher or lower, by up to this share: 0.1 is 0.9 to 1.1."""
    frame_masks: int = 0
    """Stretches of mel frames made silent."""
    frame_mask_frames: int = 20
    """Longest such stretch."""
    band_masks: int = 0
    """Groups of neighbouring mel bands made silent."""
    band_mask_bands: int = 8
    """Widest such group."""

    @property
    def longest_stretch(self) -> float:
        """How many times as long a clip may become."""
        return 1.0 / (1.0 - self.speed_change)


@dataclass(frozen=True)
class AugmentDraws:
    """What happens to each clip of a batch."""

    gains: NDArray[np.float32]
    """(clips,) factors."""
    noise_levels: NDArray[np.float32]
    """(clips,) standard deviation of the noise."""
    noise_keys: NDArray[np.int32]
    """(clips,) the noise's own seeds."""
    speed_steps: NDArray[np.int32]
    """(clips,) speed, in units of 1 / SPEED_STEPS."""
    frame_mask_sizes: NDArray[np.int32]
    """(clips, masks) frames."""
    frame_mask_starts: NDArray[np.float32]
    """(clips, masks) in [0, 1): share of the room there is, since a mel's length is known only later."""
    band_mask_sizes: NDArray[np.int32]
    """(clips, masks) bands."""
    band_mask_starts: NDArray[np.float32]
    """(clips, masks) in [0, 1): share of the room there is."""


def draw_augmentation(settings: AugmentSettings, *, seed: int, epoch: int, sample_ids: ArrayLike) -> AugmentDraws:
    """What happens to these clips in this epoch."""
    key = (seed, epoch, sample_ids)
    gain, speed, noise = (
        draw_fractions(*key, purpose)[:, 0] for purpose in (Purpose.GAIN, Purpose.SPEED, Purpose.NOISE_LEVEL)
    )
    loudest = -math.inf if settings.noise_db is None else settings.noise_db
    frames, bands = settings.frame_masks, settings.band_masks
    frame_sizes = draw_integers(*key, Purpose.FRAME_MASK_SIZE, 0, settings.frame_mask_frames, frames)
    band_sizes = draw_integers(*key, Purpose.BAND_MASK_SIZE, 0, settings.band_mask_bands, bands)
    return AugmentDraws(
        gains=(10.0 ** (settings.gain_db * (2 * gain - 1) / 20)).astype(np.float32),
        noise_levels=np.power(10.0, (loudest - NOISE_RANGE_DB * noise) / 20).astype(np.float32),
        noise_keys=(draw_words(*key, Purpose.NOISE)[:, 0] >> np.uint64(33)).astype(np.int32),
        speed_steps=np.rint((1 + settings.speed_change * (2 * speed - 1)) * SPEED_STEPS).astype(np.int32),
        frame_mask_sizes=frame_sizes.astype(np.int32),
        frame_mask_starts=_round_down(draw_fractions(*key, Purpose.FRAME_MASK_START, frames)),
        band_mask_sizes=band_sizes.astype(np.int32),
        band_mask_starts=_round_down(draw_fractions(*key, Purpose.BAND_MASK_START, bands)),
    )


def _round_down(fractions: NDArray[np.float64]) -> NDArray[np.float32]:
    # Rounding to nearest could make a 1 of it, one past the room there is.
    return (np.floor(fractions * 2**24) * 2.0**-24).astype(np.float32)


@dataclass(frozen=True)
class Slices:
    """One slice per clip, in samples."""

    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]


def draw_slices(clip_samples: ArrayLike, *, seed: int, epoch: int, sample_ids: ArrayLike) -> Slices:
    """Slices for training: 3 to 6 s anywhere in the clip; of a clip shorter than that, half of it.

    A function of (seed, epoch, sample id, length of the clip), one sample at a time.
    """
    clips = np.asarray(clip_samples, np.int64)[:, None]
    asked = draw_integers(seed, epoch, sample_ids, Purpose.SLICE_LENGTH, MIN_SLICE_SAMPLES, MAX_SLICE_SAMPLES)
    lengths = _fit_lengths(clips, asked)
    starts = draw_integers(seed, epoch, sample_ids, Purpose.SLICE_START, 0, clips - lengths)
    return Slices(starts[:, 0].astype(np.int32), lengths[:, 0].astype(np.int32))


def choose_evaluation_slices(clip_samples: ArrayLike) -> Slices:
    """Slices for validation: 4.5 s from the start; of a clip shorter than that, half of it."""
    clips = np.asarray(clip_samples, np.int64)
    lengths = _fit_lengths(clips, np.full_like(clips, MEAN_SLICE_SAMPLES))
    return Slices(np.zeros(len(clips), np.int32), lengths.astype(np.int32))


def _fit_lengths(clips: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(clips < asked, clips // 2, asked)
