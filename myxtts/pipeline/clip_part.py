"""A share of the clips of a run, for machines that each prepare one. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.data.code_cache import ClipIds

MOST_PARTS = 9999


@dataclass(frozen=True)
class ClipPart:
    """One of several parts; the whole unless told otherwise."""

    number: int = 1
    """From 1 on."""
    parts: int = 1

    def __post_init__(self) -> None:
        assert 1 <= self.number <= self.parts <= MOST_PARTS, self

    def choose(self, ids: ClipIds) -> NDArray[np.intp]:
        """Which of some clips are of this part, by their places among `ids`."""
        # By each clip's own id and not by counting: machines whose scans found different clips still leave none out.
        return np.flatnonzero(ids[:, 0] % np.uint64(self.parts) == self.number - 1)
