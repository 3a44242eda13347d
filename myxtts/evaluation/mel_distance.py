"""How far two clips of the same words are apart in sound, whatever their tempo: mel cepstra, aligned by time warping.

The unit is dB: the root mean square difference of the smoothed mel spectra, with the level left out. Figures of other
programs have other filters, orders and alignments; compare these with the codec's copy of the same recording only.

Shapes: S samples, F and G frames, M mel bands, C cepstral coefficients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.plain_mel import compute_log_mel

COEFFICIENTS = 13
"""Enough for the shape of the mouth, too few for the pitch."""

LEVEL = 0.05
"""Root mean square that every clip is brought to: what lies below the floor of silence would else depend on its loudness."""

_DECIBELS = 10.0 / np.log(10.0)


def measure_mel_distance_db(first_S: NDArray[np.float32], second_S: NDArray[np.float32]) -> float:
    """The mean distance of two clips at 22.05 kHz along their best alignment."""
    first_FC, second_GC = compute_cepstra_db(first_S), compute_cepstra_db(second_S)
    squares_FG = np.square(first_FC).sum(1)[:, None] + np.square(second_GC).sum(1) - 2 * first_FC @ second_GC.T
    return measure_alignment(np.sqrt(np.maximum(squares_FG, 0.0)))


def compute_cepstra_db(samples_S: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cepstra (F, C) whose Euclidean distance is the root mean square difference of spectra in dB."""
    level = float(np.sqrt(np.mean(np.square(samples_S, dtype=np.float64))))
    mel_FM = compute_log_mel(samples_S * np.float32(LEVEL / max(level, LEVEL * 1e-3))).astype(np.float64)
    bands = mel_FM.shape[1]
    orders, places = np.arange(1, COEFFICIENTS + 1), np.arange(bands) + 0.5
    cosines_MC = np.sqrt(2.0 / bands) * np.cos(np.pi / bands * places[:, None] * orders)
    return np.asarray(_DECIBELS / np.sqrt(bands) * (mel_FM @ cosines_MC))


def measure_alignment(distances_FG: NDArray[np.float64]) -> float:
    """The mean distance along the path from corner to corner with the lowest sum; steps go on in either clip or in both.

    Computed along the diagonals, whose cells depend on those of the two before alone.
    """
    rows, columns = distances_FG.shape
    # Indexed by row + 1: the first entry stands for a row that is not there.
    sums = [np.full(rows + 1, np.inf) for _ in range(3)]
    steps = [np.zeros(rows + 1, np.int64) for _ in range(3)]
    sums[-1][1], steps[-1][1] = distances_FG[0, 0], 1
    for diagonal in range(1, rows + columns - 1):
        first, last = max(0, diagonal - columns + 1), min(rows - 1, diagonal)
        here = np.arange(first, last + 1)
        sums, steps = [*sums[1:], np.full(rows + 1, np.inf)], [*steps[1:], np.zeros(rows + 1, np.int64)]
        came_from = ((0, here), (1, here), (1, here + 1))
        options = np.stack([sums[age][row] for age, row in came_from])
        best = options.argmin(0)
        sums[2][here + 1] = options.min(0) + distances_FG[here, diagonal - here]
        steps[2][here + 1] = np.choose(best, [steps[age][row] for age, row in came_from]) + 1
    return float(sums[2][rows] / steps[2][rows])
