"""What is known about a batch besides its arrays, and how it travels beside them through a slot.

Shapes: N facts, R replacements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.data.replacements import Failure
from myxtts.pipeline.batch_memory import MEMORY
from myxtts.pipeline.batch_spans import SPANS
from myxtts.pipeline.order import Kind

FACTS = "facts_N"
REPLACED = "replaced_R3"
CLIPS = "clips_B"
HOST_ARRAYS = frozenset({FACTS, REPLACED, CLIPS, SPANS, MEMORY})
"""Arrays that are read on the host and never put on a device."""

_KINDS = (Kind.TRAIN, Kind.VALIDATION)


class BatchFacts(NamedTuple):
    """Where a batch belongs and how much is in it."""

    number: int
    """Its place in the stream."""
    kind: Kind
    updates: int
    """Updates done before it: its step's number, or after how many updates it validates."""
    micro_batch: int
    micro_batches: int
    """Of its step."""
    epoch: int
    bucket_number: int
    clips: int
    """Rows that hold a clip."""
    samples: int
    """Of all its clips, padding left out."""
    padded_samples: int

    @property
    def is_last_of_step(self) -> bool:
        """Whether an update is due after it; every validation batch is a step of its own."""
        return self.micro_batch + 1 == self.micro_batches

    def dump(self) -> NDArray[np.int64]:
        """The facts as `facts_N`."""
        return np.array([_KINDS.index(value) if isinstance(value, Kind) else value for value in self], np.int64)

    @classmethod
    def parse(cls, facts_N: NDArray[np.int64]) -> BatchFacts:
        """The facts in `facts_N`, which may be a view of a slot."""
        values: list[Any] = facts_N.tolist()
        values[1] = _KINDS[values[1]]
        return cls(*values)


def dump_failures(failures: Sequence[Failure]) -> NDArray[np.int64]:
    """Failures as `replaced_R3`."""
    return np.array([astuple(failure) for failure in failures], np.int64).reshape(-1, 3)


def parse_failures(replaced_R3: NDArray[np.int64]) -> tuple[Failure, ...]:
    """The failures in `replaced_R3`, which may be a view of a slot."""
    return tuple(Failure(*failure) for failure in replaced_R3.tolist())
