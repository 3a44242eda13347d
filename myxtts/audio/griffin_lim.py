"""Magnitudes -> speech: phases that fit them, found by fast Griffin-Lim.

Each round goes from spectrum to samples and back, keeps the phases and restores the magnitudes. "Fast" is the momentum:
a step goes a little beyond where it leads, which needs about a third of the rounds.

In NumPy, since its transforms of so few frames take a quarter of the time of TensorFlow's on a CPU, and nothing is compiled for a length.

Shapes: B clips, T frames, F frequency bins, M mel bands, S samples, W samples of a window."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.filterbanks import DVAE_MEL, MelSpec, make_filterbank, make_window
from myxtts.audio.on_device import read_size

ROUNDS = 48
MOMENTUM = 0.99

HOP_SAMPLES = DVAE_MEL.hop_samples
WINDOW_SAMPLES = DVAE_MEL.window_samples
HOPS = WINDOW_SAMPLES // HOP_SAMPLES
_WINDOW_W = make_window(DVAE_MEL)
MARGIN_SAMPLES = WINDOW_SAMPLES // 2
"""Samples before the centre of the first frame and behind that of the last."""

_LEAST_COVER = 1e-2
"""Where windows overlap less than this, at the very ends, the samples are faded out instead of blown up."""
_LEAST_MAGNITUDE = np.float32(1e-12)
_DRAWN_FRAMES = 32
"""Phases are drawn for a multiple of so many, and kept."""
_NO_SAMPLES = np.zeros(0, np.float32)


def reconstruct_phase(
    magnitude_TF: NDArray[np.float32],
    seed: int,
    *,
    known_S: NDArray[np.float32] = _NO_SAMPLES,
    guessed_S: NDArray[np.float32] = _NO_SAMPLES,
    rounds: int = ROUNDS,
) -> NDArray[np.float32]:
    """Samples ((T - 1) * hop + window) whose spectrum has these magnitudes.

    The first `MARGIN_SAMPLES` come before the centre of the first frame, the last ones behind that of the last.

    Args:
        magnitude_TF: of the DVAE's spectrum: its window, its hop.
        seed: of the phases to start from. Equal seeds give equal samples.
        known_S: the first samples, where they are known: the phases of the rest are then found to go on from them.
        guessed_S: what may follow these: phases start from it, as far as it goes, which saves rounds.
        rounds: of restoring the magnitudes.
    """
    frames, momentum = len(magnitude_TF), np.float32(MOMENTUM)
    uncover_S = _measure_cover(frames)
    spectrum_TF = magnitude_TF * _draw_turns(seed, -(-frames // _DRAWN_FRAMES) * _DRAWN_FRAMES)[:frames]
    heard_S = np.concatenate([known_S, guessed_S])
    if (whole := min(frames, len(heard_S) // HOP_SAMPLES - HOPS + 1)) > 0 and len(guessed_S):
        spectrum_TF[:whole] = _restore(_analyse(heard_S, whole), magnitude_TF[:whole])
    before_TF = np.zeros_like(spectrum_TF)
    for _ in range(rounds):
        samples_S = _synthesise(spectrum_TF, uncover_S)
        samples_S[: len(known_S)] = known_S
        now_TF = _analyse(samples_S, frames)
        before_TF *= -momentum
        before_TF += now_TF * (1 + momentum)
        spectrum_TF, before_TF = _restore(before_TF, magnitude_TF), now_TF
    return _synthesise(spectrum_TF, uncover_S)


def _restore(spectrum_TF: NDArray[np.complex64], magnitude_TF: NDArray[np.float32]) -> NDArray[np.complex64]:
    """The phases of a spectrum with the magnitudes that it should have."""
    restored: NDArray[np.complex64] = spectrum_TF * (magnitude_TF / np.maximum(np.abs(spectrum_TF), _LEAST_MAGNITUDE))
    return restored


def _analyse(samples_S: NDArray[np.float32], frames: int) -> NDArray[np.complex64]:
    """The spectrum (T, F) of the first windows."""
    windows_TW = np.lib.stride_tricks.sliding_window_view(samples_S, WINDOW_SAMPLES)[::HOP_SAMPLES][:frames]
    # Before NumPy 2 transforms are in double precision, whatever comes in.
    spectrum_TF: NDArray[np.complex64] = np.fft.rfft(windows_TW * _WINDOW_W).astype(np.complex64, copy=False)
    return spectrum_TF


def _synthesise(spectrum_TF: NDArray[np.complex64], uncover_S: NDArray[np.float32]) -> NDArray[np.float32]:
    """The samples whose windows come nearest to a spectrum."""
    windows_TW = np.fft.irfft(spectrum_TF).astype(np.float32, copy=False)
    windows_TW *= _WINDOW_W
    samples_S = _add_up(windows_TW)
    samples_S *= uncover_S
    return samples_S


@lru_cache(maxsize=16)
def _measure_cover(frames: int) -> NDArray[np.float32]:
    """What each sample is to be multiplied by after overlapping windows were added up."""
    cover_S = _add_up(np.tile(_WINDOW_W**2, (frames, 1)))
    return np.reciprocal(np.maximum(cover_S, np.float32(_LEAST_COVER)))


@lru_cache(maxsize=8)
def _draw_turns(seed: int, frames: int) -> NDArray[np.complex64]:
    """Random phases (T, F), as numbers of magnitude 1."""
    turn_TF = np.random.default_rng(seed).uniform(-np.pi, np.pi, (frames, WINDOW_SAMPLES // 2 + 1))
    turns_TF: NDArray[np.complex64] = np.exp(1j * turn_TF).astype(np.complex64)
    return turns_TF


def _add_up(windows_TW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Overlapping windows, each a hop behind the last, added."""
    frames = len(windows_TW)
    grid = np.zeros((frames - 1 + HOPS, HOP_SAMPLES), np.float32)
    for first in range(HOPS):
        grid[first : first + frames] += windows_TW[:, first * HOP_SAMPLES : (first + 1) * HOP_SAMPLES]
    return grid.reshape(-1)


UPDATES = 24
"""Multiplicative updates of the bins. Of the power asked for, about a hundredth is then in the wrong band;
without them, a tenth."""
QUIETEST_POWER = 1e-10


def recover_magnitudes(mel_BTM: Any, mel_norms_M: NDArray[np.float32]) -> Any:
    """Magnitudes (B, T, F), none negative, whose DVAE mel is the given one. Bins above the top band are silent.

    The clipped pseudo-inverse of the filterbank is the start. Clipping alone leaves holes between harmonics and adds
    power elsewhere; the updates, which keep every bin positive, take both back.
    """
    spec = DVAE_MEL
    bins = int(np.flatnonzero(make_filterbank(spec).any(1))[-1]) + 1
    filterbank_FM, inverse_MF = make_filterbank(spec)[:bins], _make_pseudo_inverse(spec)[:, :bins]
    power_BTM = tf.exp(mel_BTM * np.asarray(mel_norms_M, np.float32))
    # Rows of one matrix: twice as fast as one product for each clip.
    power_NM = tf.reshape(power_BTM, (-1, spec.bands))
    power_NF = tf.maximum(tf.matmul(power_NM, inverse_MF), QUIETEST_POWER)
    wanted_NF = tf.matmul(power_NM, filterbank_FM, transpose_b=True)
    for _ in range(UPDATES):
        heard_NF = tf.matmul(tf.matmul(power_NF, filterbank_FM), filterbank_FM, transpose_b=True)
        power_NF *= wanted_NF / tf.maximum(heard_NF, QUIETEST_POWER)
    magnitude_NF = tf.pad(tf.sqrt(power_NF), [[0, 0], [0, spec.fft_samples // 2 + 1 - bins]])
    return tf.reshape(magnitude_NF, (*(read_size(mel_BTM, axis) for axis in range(2)), -1))


@lru_cache(maxsize=2)
def _make_pseudo_inverse(spec: MelSpec) -> NDArray[np.float32]:
    inverse: NDArray[np.float32] = np.linalg.pinv(make_filterbank(spec)).astype(np.float32)
    inverse.flags.writeable = False
    return inverse
