"""When work that does not end is said to hang: a warning first, the end of the run later. The same rule for every stage."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from myxtts.devices.import_watch import IMPORT_S

FIRST = 3
"""The first call on a GPU loads kernels and traces: minutes, not seconds."""
FINAL = 2
"""So many times the limit may pass before the run ends; after once, there is a warning."""
MOST_GAP_S = 5.0
"""Between two looks. Of a longer time nobody knows what happened in it: a machine may have slept, a process been stopped."""


@dataclass(frozen=True)
class Patience:
    """How long a stage may work on one thing before it counts as stalled."""

    item_s: float = 300.0
    first_item_s: float = FIRST * 300.0

    @classmethod
    def from_limit(cls, limit_s: float) -> Self:
        """The patience of `training.watchdog_seconds`; 0 is without end."""
        steady_s = limit_s or float("inf")
        return cls(steady_s, FIRST * steady_s)

    @property
    def start_s(self) -> float:
        """For what is done once before the first batch: large files are read, devices are set up. Never less than an import gets."""
        return max(self.first_item_s, IMPORT_S)

    @property
    def look_s(self) -> float:
        """Time between two looks: often enough for the shortest limit, and never more often than that needs."""
        return min(1.0, self.item_s / 4, self.first_item_s / 4)


class Work(NamedTuple):
    """What a thread is doing."""

    stage: str
    item: int | None
    """Which one of its kind, counted from 0; None where they are not counted."""
    began_s: float
    """When it began, by any clock: only whether it is the same matters."""
    is_first: bool = False
    """Whether it may take much longer than the same thing will later."""
    limit_s: float | None = None
    """Of its own, where it is no item of a stream."""


@dataclass(frozen=True)
class Stall:
    """Work that does not end."""

    work: Work
    limit_s: float
    is_final: bool

    def __str__(self) -> str:
        item = "" if self.work.item is None else f" at its item {self.work.item}"
        return f"Stage {self.work.stage!r} has made no progress{item} for more than {self.limit_s:g} s."


class StallWatch:
    """Looks at one thread now and then, and tells when it hangs: once after the limit, and once more at the end."""

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.perf_counter):
        self._patience = patience
        self._clock = clock
        self._work: Work | None = None
        self._looked_at = clock()
        self._silent_s = 0.0
        self._told = 0

    def look(self, work: Work | None) -> Stall | None:
        """What there is to tell of what the thread is doing now; mostly nothing."""
        now = self._clock()
        gap_s, self._looked_at = min(now - self._looked_at, MOST_GAP_S), now
        if work is None or work != self._work:
            self._work, self._silent_s, self._told = work, 0.0, 0
            return None
        self._silent_s += gap_s
        limit_s = self._choose_limit(work)
        if self._told < 1 and self._silent_s > limit_s:
            self._told = 1
            return Stall(work, limit_s, is_final=False)
        if self._told < 2 and self._silent_s > FINAL * limit_s:
            self._told = 2
            return Stall(work, FINAL * limit_s, is_final=True)
        return None

    def _choose_limit(self, work: Work) -> float:
        if work.limit_s is not None:
            return work.limit_s
        return self._patience.first_item_s if work.is_first else self._patience.item_s


def format_stack(ident: int | None) -> str:
    """Where a thread is at this moment."""
    frame = None if ident is None else sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame else "(not running)"


def format_all_stacks(first: int | None) -> str:
    """Where every thread of this process is, one of them first; not the one that asks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = [ident for ident in names if ident not in (first, threading.get_ident())]
    return "\n".join(f"Thread {names.get(ident, ident)}:\n{format_stack(ident)}" for ident in (first, *others))
