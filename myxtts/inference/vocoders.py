"""Codes and latents -> sound, in steps.

A vocoder is asked for the sound of a piece as often as there is more of it. What it gives does not depend on how often:
streamed sound is the same, sample by sample, as sound made in one step.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from myxtts.inference.voices import Voice


class Rendering(Protocol):
    """The sound of one piece, under way."""

    def render(
        self, codes_M: NDArray[np.int32], latents_MC: NDArray[np.float32], *, is_last: bool
    ) -> NDArray[np.float32]:
        """The samples that have become final since the last call.

        Args:
            codes_M: all codes so far.
            latents_MC: all latents so far.
            is_last: nothing will follow.
        """


class Vocoder(Protocol):
    """A way to make sound."""

    name: str
    """As it is asked for."""
    rate_hz: int
    how: str
    """How the sound is made, as a sentence for the user."""

    def start(self, voice: Voice, speed: float) -> Rendering:
        """The sound of a new piece."""


def count_settled(length: int, scale: float) -> int:
    """How many steps of a sequence at `scale` times its rate stay as they are when `length` steps grow more.

    The last steps lie behind the last one given, or between it and one that is not there yet.
    """
    return max(0, math.floor((length - 0.5) * scale - 0.5))
