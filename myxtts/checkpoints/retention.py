"""Which checkpoints of a run are kept, and how much room they take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a store, as its manifest describes it."""

    path: Path
    step: int
    metrics: Mapping[str, float]
    size_bytes: int


@dataclass(frozen=True)
class DiskNeed:
    """Room that the checkpoints of a run take."""

    checkpoint_bytes: int
    kept: int
    """Checkpoints that stay. While the next one is written there is one more: none goes before its successor is whole."""
    present_bytes: int
    """What the checkpoints that are already there take."""
    free_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most that is taken at any moment."""
        return (self.kept + 1) * self.checkpoint_bytes

    @property
    def is_met(self) -> bool:
        """Whether the disk has that much room."""
        return self.peak_bytes - self.present_bytes <= self.free_bytes


def rank_by_metric(checkpoints: Iterable[Checkpoint], metric: str) -> list[Checkpoint]:
    """Those that have the metric, lowest first; of equals the earlier. A loss that is not a number is no rank."""
    ranked = [checkpoint for checkpoint in checkpoints if math.isfinite(checkpoint.metrics.get(metric, math.nan))]
    return sorted(ranked, key=lambda checkpoint: (checkpoint.metrics[metric], checkpoint.step))


def choose_kept(
    checkpoints: Sequence[Checkpoint], keep_last: int, keep_best: int, metric: str
) -> dict[int, tuple[str, ...]]:
    """The steps whose checkpoints are kept, each with why: as one of the last, of the best, or both."""
    by_step = sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)
    last = {checkpoint.step for checkpoint in by_step[:keep_last]}
    best = {checkpoint.step for checkpoint in rank_by_metric(checkpoints, metric)[:keep_best]}
    return {
        step: tuple(reason for reason, steps in (("last", last), ("best", best)) if step in steps)
        for step in sorted(last | best)
    }
