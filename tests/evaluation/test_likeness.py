"""Whose voice it is."""

import numpy as np
import pytest

from myxtts.evaluation.likeness import Likeness, Speakers


def unit(*numbers):
    return np.array(numbers, float) / np.linalg.norm(numbers)


SPEAKERS = Speakers(
    {"ana": {"1": unit(1, 0.1, 0), "2": unit(1, -0.1, 0)}, "ben": {"3": unit(0, 1, 0)}, "cat": {"4": unit(0, 0.2, 1)}, "nobody": {}}
)  # fmt: skip


def test_a_clip_is_compared_with_the_other_recordings_of_its_speaker_and_with_everybody_else():
    found = SPEAKERS.compare(unit(1, 0.1, 0), "ana", recording="1")
    assert found.own == pytest.approx(float(unit(1, 0.1, 0) @ unit(1, -0.1, 0)))
    assert found.other == pytest.approx(float(unit(1, 0.1, 0) @ unit(0, 1, 0)))
    assert found.is_own_nearest
    assert not SPEAKERS.compare(unit(0, 1, 0.2), "ana", recording="x").is_own_nearest
    assert SPEAKERS.names == ("ana", "ben", "cat")


def test_what_cannot_be_compared_is_unknown():
    assert SPEAKERS.compare(unit(0, 1, 0), "ben", recording="3").own is None
    alone = Speakers({"ana": {"1": unit(1, 0), "2": unit(1, 1)}}).compare(unit(1, 0), "ana", "1")
    assert (alone.other, alone.is_own_nearest) == (None, None)
    assert Likeness(None, 0.4).is_own_nearest is None
