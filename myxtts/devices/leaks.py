"""Telling a leak from noise: growth of low and peak that goes on, over a history of bounded size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stretch:
    """The lowest and the highest of some consecutive readings."""

    low: float
    peak: float

    @property
    def middle(self) -> float:
        return (self.low + self.peak) / 2


@dataclass
class PeakHistory:
    """A quantity over equal stretches of its whole history, in bounded space.

    When the stretches run out they are merged in pairs, so that a slow leak has as much history as it needs.
    """

    warm_up: int = 20
    """Readings ignored at the start, while pools and caches fill."""
    readings_per_stretch: int = 4
    """Grows as stretches are merged."""
    stretches: list[Stretch] = field(default_factory=list)
    readings: int = 0
    _open: list[float] = field(default_factory=list)

    CAPACITY = 8
    RISING = 4
    SLOWING = 0.7
    """Growth that has fallen to less than this share of what it was at first is on its way to a plateau."""
    JUMP = 0.75
    """Growth of which a larger share came between two stretches came once, as when a validation is traced."""
    STANDSTILL = 0.1
    """Growth of which a smaller share came between two stretches stood still between them: it comes in jumps."""
    OUTGROWING = 0.5
    """Growth below this share of what readings differ by within a stretch may be chance."""

    def add(self, value: float) -> None:
        self.readings += 1
        if self.readings <= self.warm_up:
            return
        self._open.append(value)
        if len(self._open) == self.readings_per_stretch:
            self.stretches.append(Stretch(min(self._open), max(self._open)))
            self._open.clear()
        if len(self.stretches) == self.CAPACITY:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [Stretch(min(a.low, b.low), max(a.peak, b.peak)) for a, b in pairs]
            self.readings_per_stretch *= 2

    def measure_growth(self) -> float:
        """How much the peak has grown over the last stretches, if low and peak rose steadily from each to the next; else 0."""
        recent = self.stretches[-self.RISING :]
        if len(recent) < self.RISING or not all(
            a.peak < b.peak and a.low < b.low for a, b in itertools.pairwise(recent)
        ):
            return 0.0
        # Pools and caches fill fast, then slowly, then no more; a leak goes on as it began. Looked at over the whole history: what
        # fills ever more slowly seems to grow evenly for a while.
        middles = [stretch.middle for stretch in self.stretches]
        first = max(middles[1] - middles[0], recent[1].middle - recent[0].middle)
        last = (middles[-1] - middles[-3]) / 2
        growth = recent[-1].peak - recent[0].peak
        if _has_jumped([stretch.low for stretch in recent]) or _has_jumped([stretch.peak for stretch in recent]):
            return 0.0
        spread = max(stretch.peak - stretch.low for stretch in recent)
        return growth if last >= self.SLOWING * first and growth >= self.OUTGROWING * spread else 0.0

    def measure_slope(self) -> float:
        """The growth of `measure_growth` per reading."""
        return self.measure_growth() / ((self.RISING - 1) * self.readings_per_stretch)

    @property
    def last_peak(self) -> float:
        return self.stretches[-1].peak


def _has_jumped(rising: list[float]) -> bool:
    """Whether a growth came in one jump, or in some with a standstill between them."""
    steps, growth = [b - a for a, b in itertools.pairwise(rising)], rising[-1] - rising[0]
    return max(steps) > PeakHistory.JUMP * growth or min(steps) < PeakHistory.STANDSTILL * growth
