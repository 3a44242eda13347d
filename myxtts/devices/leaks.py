"""Telling a leak from noise: growth of low and peak that goes on, over a history of bounded size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stretch:
    """The lowest and the highest of some consecutive readings."""

    low: float
    peak: float


@dataclass
class PeakHistory:
    """A quantity over equal stretches of its whole history, in bounded space.

    When the stretches run out they are merged in pairs, so that a slow leak has as much history as it needs.
    """

    warm_up: int = 20
    """Readings ignored at the start, while pools and caches fill."""
    stretches: list[Stretch] = field(default_factory=list)
    readings: int = 0
    _readings_per_stretch: int = 4
    _open: list[float] = field(default_factory=list)

    CAPACITY = 8
    RISING = 4

    def add(self, value: float) -> None:
        self.readings += 1
        if self.readings <= self.warm_up:
            return
        self._open.append(value)
        if len(self._open) == self._readings_per_stretch:
            self.stretches.append(Stretch(min(self._open), max(self._open)))
            self._open.clear()
        if len(self.stretches) == self.CAPACITY:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [Stretch(min(a.low, b.low), max(a.peak, b.peak)) for a, b in pairs]
            self._readings_per_stretch *= 2

    def measure_growth(self) -> float:
        """How much the peak has grown over the last stretches, if low and peak rose from each to the next; else 0."""
        recent = self.stretches[-self.RISING :]
        rising = all(a.peak < b.peak and a.low < b.low for a, b in itertools.pairwise(recent))
        return recent[-1].peak - recent[0].peak if len(recent) == self.RISING and rising else 0.0

    @property
    def last_peak(self) -> float:
        return self.stretches[-1].peak
