"""Magnitudes -> speech: phases that fit them, found by fast Griffin-Lim.

Each round goes from spectrum to samples and back, keeps the phases and restores the magnitudes. "Fast" is the momentum:
a step goes a little beyond where it leads, which needs about a third of the rounds.

Shapes: B clips, T frames, F frequency bins, S samples, W samples of a window, P samples known beforehand."""

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
MARGIN_SAMPLES = WINDOW_SAMPLES // 2
"""Samples before the centre of the first frame and behind that of the last."""

_LEAST_COVER = 1e-2
"""Where windows overlap less than this, at the very ends, the samples are faded out instead of blown up."""
_LEAST_MAGNITUDE = 1e-12


def reconstruct_phase(magnitude_BTF: Any, seed: int, *, known_BP: Any = None, rounds: int = ROUNDS) -> Any:
    """Samples (B, (T - 1) * hop + window) whose spectrum has these magnitudes.

    The first `MARGIN_SAMPLES` come before the centre of the first frame, the last ones behind that of the last.

    Args:
        magnitude_BTF: of the DVAE's spectrum: its window, its hop.
        seed: of the phases to start from. Equal seeds give equal samples.
        known_BP: the first samples, where they are known: the phases of the rest are then found to go on from them.
        rounds: of restoring the magnitudes.
    """
    frames = read_size(magnitude_BTF, 1)
    turn_BTF = tf.random.stateless_uniform(tf.shape(magnitude_BTF), [seed, 0], -np.pi, np.pi, alg="philox")
    spectrum_BTF = tf.cast(magnitude_BTF, tf.complex64) * tf.exp(tf.complex(0.0, turn_BTF))

    def improve(spectrum: Any, before: Any) -> tuple[Any, Any]:
        samples_BS = _synthesise(spectrum)
        if known_BP is not None:
            samples_BS = tf.concat([known_BP, samples_BS[:, read_size(known_BP, 1) :]], axis=1)
        now = _analyse(samples_BS, frames)
        ahead = now + tf.cast(MOMENTUM, tf.complex64) * (now - before)
        scale = magnitude_BTF / tf.maximum(tf.abs(ahead), _LEAST_MAGNITUDE)
        return ahead * tf.cast(scale, tf.complex64), now

    start = (spectrum_BTF, tf.zeros_like(spectrum_BTF))
    spectrum_BTF, _ = tf.while_loop(lambda *_: True, improve, start, maximum_iterations=rounds)
    return _synthesise(spectrum_BTF)


def _analyse(samples_BS: Any, frames: Any) -> Any:
    """The spectrum (B, T, F) of every window."""
    hops = WINDOW_SAMPLES // HOP_SAMPLES
    grid = tf.reshape(samples_BS, (read_size(samples_BS, 0), frames - 1 + hops, HOP_SAMPLES))
    windows_BTW = tf.concat([grid[:, first : first + frames] for first in range(hops)], axis=-1)
    return tf.signal.rfft(windows_BTW * make_window(DVAE_MEL))


def _synthesise(spectrum_BTF: Any) -> Any:
    """The samples whose windows come nearest to a spectrum."""
    window_W = make_window(DVAE_MEL)
    frames = read_size(spectrum_BTF, 1)
    windows_BTW = tf.signal.irfft(spectrum_BTF) * window_W
    cover_S = _add_up(tf.broadcast_to(window_W**2, (1, frames, WINDOW_SAMPLES)))
    return _add_up(windows_BTW) / tf.maximum(cover_S, _LEAST_COVER)


def _add_up(windows_BTW: Any) -> Any:
    """Overlapping windows, each a hop behind the last, added: hops side by side, which is faster than scattering."""
    hops = WINDOW_SAMPLES // HOP_SAMPLES
    parts = tf.split(windows_BTW, hops, axis=-1)
    padded = [tf.pad(part, [[0, 0], [first, hops - 1 - first], [0, 0]]) for first, part in enumerate(parts)]
    return tf.reshape(tf.add_n(padded), (read_size(windows_BTW, 0), -1))


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
    filterbank_FM, inverse_MF = make_filterbank(spec), _make_pseudo_inverse(spec)
    power_BTM = tf.exp(mel_BTM * np.asarray(mel_norms_M, np.float32))
    power_BTF = tf.maximum(_multiply(power_BTM, inverse_MF), QUIETEST_POWER)
    wanted_BTF = _multiply(power_BTM, filterbank_FM.T)
    for _ in range(UPDATES):
        heard_BTF = _multiply(_multiply(power_BTF, filterbank_FM), filterbank_FM.T)
        power_BTF *= wanted_BTF / tf.maximum(heard_BTF, QUIETEST_POWER)
    return tf.sqrt(power_BTF)


def _multiply(x_BTI: Any, matrix_IO: NDArray[np.float32]) -> Any:
    return tf.einsum("bti,io->bto", x_BTI, matrix_IO)


@lru_cache(maxsize=2)
def _make_pseudo_inverse(spec: MelSpec) -> NDArray[np.float32]:
    inverse: NDArray[np.float32] = np.linalg.pinv(make_filterbank(spec)).astype(np.float32)
    inverse.flags.writeable = False
    return inverse
