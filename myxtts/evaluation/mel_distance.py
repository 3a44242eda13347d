"""How far a clip is from a recording of the same words: mel cepstra, aligned in time, every frame too many or too few paid for.

The unit is dB: the root mean square difference of the smoothed mel spectra, a frame of the recording on average, with the
loudness of the clips as a whole left out. Figures of other programs have other filters, orders and alignments; compare these
with the codec's copy of the same recording only.

Shapes: S samples, F and G frames, M mel bands, C cepstral coefficients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.plain_mel import compute_log_mel

COEFFICIENTS = 14
"""Level and shape: enough for the mouth, too few for the pitch. Without the level a pause is like noise, both being flat."""

LEVEL = 0.05
"""Root mean square that every clip is brought to: what lies below the floor of silence would else depend on its loudness."""

UNPAIRED_FRAME_DB = 15.0
"""Added for a frame that only one clip goes on by: about the distance of other words. Leaving words out is as bad as saying others."""

_DECIBELS = 10.0 / np.log(10.0)


def measure_mel_distance_db(recording_S: NDArray[np.float32], clip_S: NDArray[np.float32]) -> float:
    """The distance of a clip from a recording, both at 22.05 kHz, by the recording's frames along the best alignment."""
    recording_FC, clip_GC = compute_cepstra_db(recording_S), compute_cepstra_db(clip_S)
    squares_FG = np.square(recording_FC).sum(1)[:, None] + np.square(clip_GC).sum(1) - 2 * recording_FC @ clip_GC.T
    return sum_alignment(np.sqrt(np.maximum(squares_FG, 0.0)), UNPAIRED_FRAME_DB) / len(recording_FC)


def compute_cepstra_db(samples_S: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cepstra (F, C) whose Euclidean distance is the root mean square difference of spectra in dB."""
    level = float(np.sqrt(np.mean(np.square(samples_S, dtype=np.float64))))
    mel_FM = compute_log_mel(samples_S * np.float32(LEVEL / max(level, LEVEL * 1e-3))).astype(np.float64)
    bands = mel_FM.shape[1]
    orders, places = np.arange(COEFFICIENTS), np.arange(bands) + 0.5
    cosines_MC = np.sqrt(np.where(orders, 2.0, 1.0) / bands) * np.cos(np.pi / bands * places[:, None] * orders)
    return np.asarray(_DECIBELS / np.sqrt(bands) * (mel_FM @ cosines_MC))


def sum_alignment(distances_FG: NDArray[np.float64], price: float) -> float:
    """The lowest sum of distances from corner to corner; a step that goes on in one clip alone costs `price` more.

    A sum and no mean over the path: a mean falls with every cheap step that is added, and rewards a clip that runs on.
    Computed along the diagonals, whose cells depend on those of the two before alone.
    """
    rows, columns = distances_FG.shape
    # Indexed by row + 1: the first entry stands for a row that is not there.
    before, last, now = (np.full(rows + 1, np.inf) for _ in range(3))
    now[1] = distances_FG[0, 0]
    for diagonal in range(1, rows + columns - 1):
        here = np.arange(max(0, diagonal - columns + 1), min(rows - 1, diagonal) + 1)
        before, last, now = last, now, np.full(rows + 1, np.inf)
        alone = np.minimum(last[here], last[here + 1]) + price
        now[here + 1] = np.minimum(before[here], alone) + distances_FG[here, diagonal - here]
    return float(now[rows])
