"""When a batch was read, prepared and copied: it carries these moments with it, so that whoever waited for it knows why.

All are of `time.perf_counter`, which on Linux counts the same in every process of the machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPANS = "moments_22"


class Span(NamedTuple):
    """From one moment to another."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


class BatchSpans(NamedTuple):
    """When the stages worked on a batch."""

    read: Span
    """Waiting for its clips, beyond what was read ahead."""
    prepare: Span
    transfer: Span


def dump_spans(read: Span, prepare: Span) -> NDArray[np.float64]:
    """The moments of reading and preparing as `moments_22`."""
    return np.array([read, prepare], np.float64)


def parse_spans(moments_22: NDArray[np.float64]) -> tuple[Span, Span]:
    """Reading and preparing in `moments_22`, which may be a view of a slot."""
    read, prepare = moments_22.tolist()
    return Span(*read), Span(*prepare)
