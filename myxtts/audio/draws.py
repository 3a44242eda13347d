"""Random numbers that are a function of (seed, epoch, sample, purpose) and of nothing else.

Own integer arithmetic rather than a library's generator: the same numbers in every process and order, and in every version
of NumPy and TensorFlow, so that a resumed run draws what the unbroken one would have drawn.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from myxtts.hashing import hash_words


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
