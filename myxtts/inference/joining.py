"""Pieces of sound joined so that no seam is heard: cross-fades inside a piece, soft edges and pauses between pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OVERLAP_SAMPLES = 1024
EDGE_SECONDS = 0.005
PAUSE_SECONDS = 0.2
"""Silence between two pieces of a text."""


class CrossFader:
    """Joins renderings of which each repeats the end of the one before.

    The end of a rendering is held back until the next one, which knows better what follows, is faded in over it.
    Samples are counted from the start of the piece.

    Args:
        overlap_samples: how much is held back, and the length of a fade.
    """

    def __init__(self, overlap_samples: int = OVERLAP_SAMPLES):
        self._overlap = overlap_samples
        self._held: NDArray[np.float32] = np.zeros(0, np.float32)
        self._emitted = 0

    def join(self, samples: NDArray[np.float32], first: int, *, is_last: bool) -> NDArray[np.float32]:
        """The samples that are final now.

        Args:
            samples: a rendering that covers what is held back.
            first: the position of its first sample, at most what was given out so far.
            is_last: nothing follows, so nothing is held back.
        """
        assert first <= self._emitted, "a rendering must not leave a gap"
        fresh = samples[self._emitted - first :]
        end = len(fresh) if is_last else len(fresh) - self._overlap
        if end < min(len(self._held), len(fresh)):
            # Too little is new to finish the fade. Giving out half of a fade is how the reference repeats sound.
            return np.zeros(0, np.float32)
        faded = self._fade(fresh)
        self._held = faded[end:].copy()
        self._emitted += end
        return faded[:end]

    def _fade(self, fresh: NDArray[np.float32]) -> NDArray[np.float32]:
        length = min(len(self._held), len(fresh))
        if not length:
            return fresh
        rise = np.linspace(0.0, 1.0, length, dtype=np.float32)
        faded = fresh.copy()
        faded[:length] = fresh[:length] * rise + self._held[:length] * rise[::-1]
        return faded


class EdgeSoftener:
    """Fades the first and the last few milliseconds of a piece, which otherwise may start or end with a click."""

    def __init__(self, rate_hz: int):
        self._edge = round(EDGE_SECONDS * rate_hz)
        self._passed = 0

    def soften(self, samples: NDArray[np.float32], *, is_last: bool) -> NDArray[np.float32]:
        """The next samples of the piece. The last ones must not be fewer than a fade, or it is cut short."""
        softened = samples.copy()
        rise = np.arange(self._passed, self._passed + len(samples), dtype=np.float32) / self._edge
        softened *= np.minimum(rise, 1.0)
        if is_last:
            fall = np.arange(len(samples) - 1, -1, -1, dtype=np.float32) / self._edge
            softened *= np.minimum(fall, 1.0)
        self._passed += len(samples)
        return softened


def make_pause(rate_hz: int) -> NDArray[np.float32]:
    """The silence between two pieces."""
    return np.zeros(round(PAUSE_SECONDS * rate_hz), np.float32)
