"""What making a batch has cost: measured where it is made, and carried with the batch to where it is shown."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.pipeline.stage import StageFacts

METERS = "meters_N"


@dataclass(frozen=True)
class BatchMeters:
    """The cost of one batch, or of several."""

    batches: int = 0
    read_s: float = 0.0
    """Waiting for its clips, beyond what was read ahead."""
    prepare_s: float = 0.0
    cache_hits: int = 0
    """Clips whose codes were found."""
    cache_misses: int = 0
    traces: int = 0
    """Functions traced. Each shape is traced once; what comes after warm-up is a retrace."""

    def __add__(self, other: BatchMeters) -> BatchMeters:
        return BatchMeters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: BatchMeters) -> BatchMeters:
        return BatchMeters(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def dump(self) -> NDArray[np.float64]:
        """The meters as `meters_N`."""
        return np.array(astuple(self), np.float64)

    @classmethod
    def parse(cls, meters_N: NDArray[np.float64]) -> BatchMeters:
        """The meters in `meters_N`, which may be a view of a slot."""
        batches, read_s, prepare_s, hits, misses, traces = meters_N.tolist()
        return cls(int(batches), read_s, prepare_s, int(hits), int(misses), int(traces))

    def list_stages(self) -> list[StageFacts]:
        """Reading and preparing as stages."""
        return [StageFacts("read", self.batches, self.read_s), StageFacts("prepare", self.batches, self.prepare_s)]
