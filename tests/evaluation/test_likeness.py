"""Whose voice it is."""

import numpy as np
import pytest

from myxtts.evaluation.scores import compare_voices

ANA, TWIN, BEN = np.array([1.0, 0.0]), np.array([0.8, 0.6]), np.array([0.0, 1.0])
VOICES = {"ana": {"1": ANA, "2": TWIN}, "ben": {"3": BEN}}


def test_a_clip_is_compared_with_the_other_recordings_of_its_speaker_and_with_everybody_else():
    found = compare_voices(VOICES, ANA, "ana", recording="1")
    assert (found.own, found.other, found.is_own_nearest) == (pytest.approx(0.8), 0.0, True)
    assert not compare_voices(VOICES, BEN, "ana", recording="x").is_own_nearest
    # The only recording of its speaker, and the only speaker there is.
    for alone in (compare_voices(VOICES, BEN, "ben", "3"), compare_voices({"ana": VOICES["ana"]}, ANA, "ana", "1")):
        assert None in (alone.own, alone.other)
        assert alone.is_own_nearest is None
