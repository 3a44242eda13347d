"""The distance of two clips of the same words."""

import numpy as np
import pytest

from myxtts.audio.plain_mel import POWER_FLOOR
from myxtts.evaluation.mel_distance import COEFFICIENTS, compute_cepstra_db, measure_alignment, measure_mel_distance_db


def align_slowly(distances):
    """The definition, cell by cell."""
    rows, columns = distances.shape
    best = {(0, 0): (distances[0, 0], 1)}
    for i in range(rows):
        for j in range(columns):
            if (i, j) != (0, 0):
                total, steps = min(
                    (best[place] for place in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if place in best),
                    key=lambda cell: cell[0],
                )
                best[i, j] = (total + distances[i, j], steps + 1)
    total, steps = best[rows - 1, columns - 1]
    return total / steps


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (7, 9), (23, 11)])
def test_the_alignment_is_the_best_one(shape):
    distances = np.random.default_rng(sum(shape)).random(shape)
    assert measure_alignment(distances) == pytest.approx(align_slowly(distances), rel=1e-12)


def make_clip(pitch_hz, seconds=0.6):
    times = np.arange(round(seconds * 22050)) / 22050
    return (0.1 * sum(np.sin(2 * np.pi * pitch_hz * n * times) / n for n in range(1, 12))).astype(np.float32)


def test_a_clip_is_next_to_itself_at_any_level_and_tempo():
    clip = make_clip(150)
    other = make_clip(400)
    joined = np.concatenate([clip, other])
    slower = np.concatenate([make_clip(150, 0.9), make_clip(400, 1.1)])
    assert measure_mel_distance_db(joined, joined) == pytest.approx(0, abs=1e-5)
    assert measure_mel_distance_db(joined, joined * 0.5) < 0.3
    assert measure_mel_distance_db(joined, slower) < 1.0
    assert measure_mel_distance_db(joined, np.concatenate([other, clip])) > 3.0


def test_the_unit_is_the_difference_of_spectra_in_decibels():
    # A tilt along the first cosine of 80 bands, 10 dB at its ends: 7.07 dB root mean square.
    tilt = 10.0 / np.sqrt(2.0)
    bands = np.cos(np.pi / 80 * (np.arange(80) + 0.5)) * 10.0 * np.log(10.0) / 10.0
    quiet = np.log(POWER_FLOOR)
    flat, tilted = compute_from_mel(np.full((1, 80), quiet)), compute_from_mel(quiet + bands[None])
    assert flat.shape == (1, COEFFICIENTS)
    assert np.linalg.norm(tilted - flat) == pytest.approx(tilt, rel=1e-6)


def compute_from_mel(mel):
    import myxtts.evaluation.mel_distance as module

    original = module.compute_log_mel
    module.compute_log_mel = lambda samples: mel
    try:
        return compute_cepstra_db(np.zeros(1, np.float32))
    finally:
        module.compute_log_mel = original
