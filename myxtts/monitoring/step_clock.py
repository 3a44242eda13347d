"""How long steps take: durations of the steps that are like the others, and their spread."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP_STEPS = 10
"""The first steps meet full buffers and cold caches: they say nothing about the rest."""


@dataclass(frozen=True)
class StepTimes:
    """Durations of the steps that count, in seconds."""

    steps: int
    left_out: int
    """Steps of the warm-up, and those that traced, validated or saved."""
    mean_s: float
    min_s: float
    max_s: float
    p50_s: float
    p95_s: float
    std_s: float | None
    """None for a single step: its spread is not known."""

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean."""
        return None if self.std_s is None or self.mean_s == 0 else self.std_s / self.mean_s


def measure_durations(durations_s: Sequence[float], left_out: int = 0) -> StepTimes | None:
    """The figures of some durations; None when there are none."""
    if not len(durations_s):
        return None
    values_N = np.asarray(durations_s, dtype=np.float64)
    low, p50, p95, high = map(float, np.quantile(values_N, (0.0, 0.5, 0.95, 1.0)))
    std_s = float(values_N.std()) if len(values_N) > 1 else None
    return StepTimes(len(values_N), left_out, float(values_N.mean()), low, high, p50, p95, std_s)


class StepClock:
    """Times the steps of a loop from end to end, so that waiting for the batch is part of a step.

    Call `begin` where the loop begins and `end_step` once per step, always at the same place. Eight bytes are kept per step.
    """

    def __init__(self, warm_up: int = WARM_UP_STEPS, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._warm_up = warm_up
        self.durations_s = array("d")
        """The durations that count, oldest first."""
        self.ended = 0
        """Steps so far, those left out included."""
        self._is_left_out = False
        self._since = clock()
        self._window_start = 0
        self._window_left_out = 0

    def begin(self) -> None:
        """The first step begins now."""
        self._since = self._clock()

    def leave_out(self) -> None:
        """The step under way does not count: it traced, or something other than a step happened in it."""
        self._is_left_out = True

    def end_step(self) -> None:
        now = self._clock()
        self.ended += 1
        if self._is_left_out or self.ended <= self._warm_up:
            self._is_left_out = False
            self._window_left_out += 1
        else:
            self.durations_s.append(now - self._since)
        self._since = now

    def read(self) -> StepTimes | None:
        """The figures since the start; None until a step counts."""
        return measure_durations(self.durations_s, self.ended - len(self.durations_s))

    def take_window(self) -> tuple[list[float], int]:
        """The durations that count since this was last called, and how many steps were left out meanwhile."""
        window, left_out = self.durations_s[self._window_start :].tolist(), self._window_left_out
        self._window_start, self._window_left_out = len(self.durations_s), 0
        return window, left_out
