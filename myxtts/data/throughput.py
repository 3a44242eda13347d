"""How fast clips become batches: measured in windows of equal length that contenders take in turn.

On a shared machine a single figure means little. Windows are interleaved, so that a busy minute hits all contenders, the
median of a contender's windows counts, and a window in which the host took the CPU away is discarded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from myxtts.audio.units import SAMPLE_RATE_HZ

MOST_STEAL = 0.05
"""Share of the CPU time that the host may have taken away in a window that counts."""
_MOST_DISCARDED = 2
"""Windows in a row that are tried again before one is taken as it is."""


class Piece(NamedTuple):
    """What a contender has done since its last piece."""

    clips: int
    samples: int


Contender = Callable[[], AbstractContextManager[Iterator[Piece]]]
"""Opens whatever does the work, and warms it up; the iterator never ends."""


@dataclass(frozen=True)
class Rate:
    """Speed of a contender or a stage."""

    clips_per_s: float
    audio_seconds_per_s: float


@dataclass(frozen=True)
class Measurement:
    """Median rates by contender, and how quiet the machine was."""

    rates: Mapping[str, Rate]
    windows: int
    discarded: int


def measure_in_turn(contenders: Mapping[str, Contender], rounds: int, seconds: float) -> Measurement:
    """The median rate of each contender over `rounds` windows of so many seconds."""
    rates: dict[str, list[Rate]] = {name: [] for name in contenders}
    discarded = 0
    for _ in range(rounds):
        for name, contender in contenders.items():
            for attempt in range(_MOST_DISCARDED + 1):
                with contender() as pieces:
                    steal = StealMeter()
                    rate = count_pieces(pieces, seconds)
                    is_quiet = steal.read_share() <= MOST_STEAL
                if is_quiet or attempt == _MOST_DISCARDED:
                    rates[name].append(rate)
                    break
                discarded += 1
    return Measurement(
        {name: take_median(windows) for name, windows in rates.items()}, rounds * len(contenders), discarded
    )


def warm_up(pieces: Iterator[Piece], seconds: float, least: int = 1) -> None:
    """Let an iterator run without counting: for so long, and for at least so many pieces."""
    begun, done = time.perf_counter(), 0
    while done < least or time.perf_counter() - begun < seconds:
        next(pieces)
        done += 1


def count_pieces(pieces: Iterator[Piece], seconds: float) -> Rate:
    """The rate at which an iterator gives pieces, over at least `seconds`."""
    clips = samples = 0
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or clips == 0:
        piece = next(pieces)
        clips += piece.clips
        samples += piece.samples
    return Rate(clips / elapsed, samples / SAMPLE_RATE_HZ / elapsed)


def take_median(rates: Sequence[Rate]) -> Rate:
    """The median of rates, number by number."""
    return Rate(
        statistics.median(rate.clips_per_s for rate in rates),
        statistics.median(rate.audio_seconds_per_s for rate in rates),
    )


class StealMeter:
    """Tells how much CPU time the host has taken away since it was made. Unknown counts as none."""

    def __init__(self, path: Path = Path("/proc/stat")):
        self._path = path
        self._before = self._read()

    def read_share(self) -> float:
        """Share of all CPU time, 0 to 1."""
        steal, total = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return steal / total if total else 0.0

    def _read(self) -> tuple[int, int]:
        try:
            words = self._path.read_text().partition("\n")[0].split()[1:]
        except OSError:
            return 0, 0
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
        ticks = [int(word) for word in words[:8]]
        return (ticks[7] if len(ticks) > 7 else 0), sum(ticks)
