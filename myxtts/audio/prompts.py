"""Which part of a clip the model hears as its voice prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from myxtts.audio.augment import Purpose, draw_integers
from myxtts.units import MAX_SLICE_SAMPLES, MEAN_SLICE_SAMPLES, MIN_SLICE_SAMPLES


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
