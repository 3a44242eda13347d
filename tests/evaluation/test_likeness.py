"""Whose voice it is."""

import numpy as np
import pytest

from myxtts.evaluation.likeness import Speakers

ANA, TWIN, BEN = np.array([1.0, 0.0]), np.array([0.8, 0.6]), np.array([0.0, 1.0])
SPEAKERS = Speakers({"ana": {"1": ANA, "2": TWIN}, "ben": {"3": BEN}, "nobody": {}})


def test_a_clip_is_compared_with_the_other_recordings_of_its_speaker_and_with_everybody_else():
    found = SPEAKERS.compare(ANA, "ana", recording="1")
    assert (found.own, found.other, found.is_own_nearest) == (pytest.approx(0.8), 0.0, True)
    assert not SPEAKERS.compare(BEN, "ana", recording="x").is_own_nearest
    assert SPEAKERS.names == ("ana", "ben")
    # The only recording of its speaker, and the only speaker there is.
    for alone in (SPEAKERS.compare(BEN, "ben", "3"), Speakers({"ana": {"1": ANA, "2": TWIN}}).compare(ANA, "ana", "1")):
        assert None in (alone.own, alone.other)
        assert alone.is_own_nearest is None
