"""How far a run is and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a session stands. Steps are updates done."""

    step: int
    end_step: int
    epochs: int | None
    next_checkpoint: int | None
    """The step of it; None when none is to come."""
    step_s: float | None
    """Wall time per step of this session, validating and saving included; None while too few steps tell."""

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.end_step) if self.end_step else 1.0

    @property
    def left_s(self) -> float | None:
        return None if self.step_s is None else self.step_s * max(0, self.end_step - self.step)

    @property
    def checkpoint_s(self) -> float | None:
        """Time until the next checkpoint."""
        if self.step_s is None or self.next_checkpoint is None:
            return None
        return self.step_s * max(0, self.next_checkpoint - self.step)


ENOUGH_STEPS = 10
"""Fewer say nothing about the pace of a run."""


class ProgressMeter:
    """Measures the pace of a session from its first step on."""

    def __init__(self, end_step: int, epochs: int | None = None, clock: Callable[[], float] = time.perf_counter):
        self._end_step = end_step
        self._epochs = epochs
        self._clock = clock
        self._base: tuple[int, float] | None = None
        self._traced_s = 0.0

    def measure(self, step: int, next_checkpoint: int | None = None, *, traced_s: float = 0.0) -> Progress:
        """Where the session stands with so many updates done. The first call starts the clock.

        Args:
            traced_s: time that tracing took since the last call. While it is most of the time, there is no pace yet.
        """
        now = self._clock()
        if self._base is None:
            # The steps so far have traced their shapes: they would make the whole run look slow.
            self._base = step, now
        else:
            self._traced_s += traced_s
        base_step, since = self._base
        is_known = step - base_step >= ENOUGH_STEPS and now - since >= 2 * self._traced_s
        step_s = (now - since) / (step - base_step) if is_known else None
        return Progress(step, self._end_step, self._epochs, next_checkpoint, step_s)
