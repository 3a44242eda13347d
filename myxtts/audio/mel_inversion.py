"""DVAE mel -> magnitudes of the spectrum it was made from, as near as 80 bands tell.

Shapes: B clips, T frames, M mel bands, F frequency bins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.filterbanks import DVAE_MEL, MelSpec, make_filterbank

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
