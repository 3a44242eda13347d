"""Whose voice is it: cosines to the centroids of speakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Voices = Mapping[str, Mapping[str, Vector]]
"""Speaker -> name of a recording -> its voice, of length 1."""


@dataclass(frozen=True)
class Likeness:
    """How alike a clip is to its own speaker and to the others; cosines from -1 to 1."""

    own: float | None
    """None where the speaker has no other recording to compare with."""
    other: float | None
    """Of the other speaker who is nearest; None where there is none."""

    @property
    def is_own_nearest(self) -> bool | None:
        """Whether the clip is closer to its own speaker than to any other; None where there is nothing to compare."""
        return None if self.own is None or self.other is None else self.own > self.other


def compare_voices(voices: Voices, vector: Vector, speaker: str, recording: str) -> Likeness:
    """A clip against everybody.

    Args:
        vector: the clip's voice.
        speaker: whose it is, or should be.
        recording: its own recording, which is left out: the same words would flatter it.
    """
    own = [voice for name, voice in voices.get(speaker, {}).items() if name != recording]
    others = [_measure_cosine(vector, list(clips.values())) for name, clips in voices.items() if name != speaker]
    return Likeness(own=_measure_cosine(vector, own) if own else None, other=max(others, default=None))


def _measure_cosine(vector: Vector, clips: list[Vector]) -> float:
    centroid = np.mean(clips, axis=0)
    return float(vector @ centroid / max(float(np.linalg.norm(centroid)), 1e-12))
