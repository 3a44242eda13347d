"""Where the time of a run goes: every moment under exactly one cause, the times of steps, the time left, and who waits for whom."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from myxtts.pipeline.threads import HandoffFacts, WorkFacts


class Cause(StrEnum):
    """What time was spent on. Only `STEP` is goodput; all others are badput."""

    STEP = "step"
    START_UP = "start-up"
    TRACE = "trace/compile"
    DATA_STALL = "data stall"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    VALIDATION = "validation"
    RECOVERY = "recovery"
    OTHER_WORKERS = "other workers"
    """Waiting for the slowest worker of a cluster. The exchange of gradients itself is part of the step."""
    OTHER = "other"
    """The loop itself: reading metrics, logging."""


Spent = Mapping[Cause, float]
"""Seconds by cause; causes without any time may be missing."""


@dataclass(eq=False)
class BookedSpan:
    """A stretch of time that is being booked."""

    cause: Cause
    """May be changed until the span ends: that a step traced is known only when it is done."""
    name: str | None = None
    """What exactly is done, where the cause does not say it; for who asks whether it hangs."""
    item: int | None = None
    """How far it is, where that is known."""
    own_s: float = 0.0
    """Without the time of spans within it."""
    is_first: bool = False
    """Whether something is done for the first time, which on a GPU may take minutes."""


class TimeLedger:
    """Books time from its making on: first as start-up, after `begin_loop` as other, inside `spend` under its cause.

    A span inside a span interrupts it, so nothing is counted twice and the parts always add up to the time elapsed.
    For one thread: that of the training loop.

    Example:
        with ledger.spend(Cause.STEP) as span:
            step(batch)
            if traced():
                span.cause = Cause.TRACE
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._since = clock()
        self._spent_s = dict.fromkeys(Cause, 0.0)
        self._open = [BookedSpan(Cause.START_UP)]
        self._window_start: Spent = {}

    def begin_loop(self) -> None:
        """Start-up is over: what no span covers is other time from now on."""
        self._credit()
        base = self._open[0]
        self._spent_s[base.cause] += base.own_s
        self._open[0] = BookedSpan(Cause.OTHER)

    @contextmanager
    def spend(self, cause: Cause, name: str | None = None) -> Iterator[BookedSpan]:
        """Books the time within under a cause, whatever way it ends."""
        self._credit()
        span = BookedSpan(cause, name)
        self._open.append(span)
        try:
            yield span
        finally:
            self._credit()
            ended = self._open.pop()
            assert ended is span, "spans end in the reverse order of their beginning"
            self._spent_s[span.cause] += span.own_s

    def read(self) -> dict[Cause, float]:
        """Seconds by cause since the ledger was made, spans that are still open included."""
        self._credit()
        spent = dict(self._spent_s)
        for span in self._open:
            spent[span.cause] += span.own_s
        return spent

    def peek(self) -> tuple[BookedSpan, float]:
        """What is being done and since when by the clock. For any thread: it reads what is written anyway, and waits for nothing."""
        # The span first: when a span begins or ends, the time is written before it changes, so it is never too old.
        return self._open[-1], self._since

    def take_window(self) -> dict[Cause, float]:
        """Seconds by cause since this was last called; causes without any are left out."""
        now = self.read()
        window = {cause: now[cause] - self._window_start.get(cause, 0.0) for cause in Cause}
        self._window_start = now
        # A span that changed its cause while open takes its time along, out of a window that may already be closed.
        return {cause: seconds for cause, seconds in window.items() if seconds}

    def _credit(self) -> None:
        now = self._clock()
        self._open[-1].own_s += now - self._since
        self._since = now


def sum_spent(windows: Sequence[Spent]) -> dict[Cause, float]:
    """The sum of some windows, with every cause in it."""
    return {cause: math.fsum(part.get(cause, 0.0) for part in windows) for cause in Cause}


def measure_elapsed(spent: Spent) -> float:
    """All the time that was booked, in seconds."""
    return math.fsum(spent.values())


def measure_goodput(spent: Spent) -> float | None:
    """Share of the time elapsed that went into steps; None while no time has passed."""
    elapsed_s = measure_elapsed(spent)
    return spent.get(Cause.STEP, 0.0) / elapsed_s if elapsed_s > 0 else None


def measure_training(spent: Spent) -> float:
    """Seconds in which the run made its steps or could have: without start-up, tracing, validating, saving, recovering."""
    return math.fsum(spent.get(cause, 0.0) for cause in (Cause.STEP, Cause.DATA_STALL, Cause.TRANSFER, Cause.OTHER))


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
        self._clock, self._warm_up = clock, warm_up
        self.durations_s = array("d")
        """The durations that count, oldest first."""
        self.ended = 0
        """Steps so far, those left out included."""
        self._is_left_out = False
        self._since = clock()
        self._window_start = self._window_ended = 0

    def begin(self) -> None:
        """The first step begins now."""
        self._since = self._clock()

    def leave_out(self) -> None:
        """The step under way does not count: it traced, or something other than a step happened in it."""
        self._is_left_out = True

    def end_step(self) -> None:
        now = self._clock()
        self.ended += 1
        if not self._is_left_out and self.ended > self._warm_up:
            self.durations_s.append(now - self._since)
        self._is_left_out, self._since = False, now

    def read(self) -> StepTimes | None:
        """The figures since the start; None until a step counts."""
        return measure_durations(self.durations_s, self.ended - len(self.durations_s))

    def take_window(self) -> tuple[list[float], int]:
        """The durations that count since this was last called, and how many steps were left out meanwhile."""
        window = self.durations_s[self._window_start :].tolist()
        left_out = self.ended - self._window_ended - len(window)
        self._window_start, self._window_ended = len(self.durations_s), self.ended
        return window, left_out


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

    def measure_until(self, step: int | None) -> float | None:
        """Seconds until so many updates are done."""
        return None if self.step_s is None or step is None else self.step_s * max(0, step - self.step)


ENOUGH_STEPS = 10
"""Fewer say nothing about the pace of a run."""


class ProgressMeter:
    """Measures the pace of a session from its first step on."""

    def __init__(self, end_step: int, epochs: int | None = None, clock: Callable[[], float] = time.perf_counter):
        self._end_step, self._epochs, self._clock = end_step, epochs, clock
        self._base: tuple[int, float] | None = None
        self._traced_s = 0.0

    def measure(self, step: int, next_checkpoint: int | None = None, *, traced_s: float = 0.0) -> Progress:
        """Where the session stands with so many updates done. The first call starts the clock. While most of the time
        since then was traced (`traced_s`, since the last call), there is no pace yet."""
        now = self._clock()
        if self._base is None:
            # The steps so far have traced their shapes: they would make the whole run look slow.
            self._base, traced_s = (step, now), 0.0
        self._traced_s += traced_s
        steps, seconds = step - self._base[0], now - self._base[1]
        is_known = steps >= ENOUGH_STEPS and seconds >= 2 * self._traced_s
        return Progress(step, self._end_step, self._epochs, next_checkpoint, seconds / steps if is_known else None)


TRAINING = "train"
"""The name of what takes from the last hand-off. It is no stage of the pipeline: it is what the pipeline is for."""
STARVED = 0.1
"""A stage that waits for its input for a larger share of the time is held up by the one before."""


@dataclass(frozen=True)
class Flow:
    """What the stages and hand-offs of a pipeline did in a stretch of time, each in flow order.

    The last hand-off lies between the last stage and the training, the one before it between the last two stages, and
    so on. Stages left over at the beginning (reading) work in series with the one before the first hand-off.
    """

    elapsed_s: float
    stages: tuple[WorkFacts, ...]
    handoffs: tuple[HandoffFacts, ...]
    preparers: tuple[HandoffFacts, ...] = ()
    """Where several prepare beside each other: of each how long it waited for something to do, and the training for it."""
    trainers: tuple[HandoffFacts, ...] = ()
    """Where several train: of each how long it waited for its batches (as a taker), and for the others (as a giver of gradients)."""

    def name_giver(self, handoff: int) -> str:
        """The stage before a hand-off, by its number."""
        number = len(self.stages) - len(self.handoffs) + handoff
        return self.stages[number].name if number >= 0 else f"before {self.handoffs[handoff].name}"

    def name_taker(self, handoff: int) -> str:
        return TRAINING if handoff == len(self.handoffs) - 1 else self.name_giver(handoff + 1)

    def share(self, seconds: float) -> float | None:
        """A time as a share of the stretch, 0 to 1."""
        return min(1.0, seconds / self.elapsed_s) if self.elapsed_s > 0 else None


def find_slowest(flow: Flow) -> str:
    """The stage that all others wait for, or `train` when the training never waits for long.

    Followed upstream from the training: a stage that waits for its input is not to blame, the one before it is.
    """
    slowest = TRAINING
    for number in reversed(range(len(flow.handoffs))):
        waiting = flow.share(flow.handoffs[number].taker_wait_s)
        if waiting is None or waiting < STARVED:
            return slowest
        slowest = flow.name_giver(number)
    # Everything before the first hand-off happens one after the other.
    in_series = flow.stages[: len(flow.stages) - len(flow.handoffs) + 1] if flow.handoffs else ()
    return max(in_series, key=lambda stage: stage.busy_s).name if in_series else slowest


def subtract_flow(now: Flow, before: Flow | None) -> Flow:
    """What happened between two readings of facts that are counted from the start."""
    if before is None or now.elapsed_s < before.elapsed_s:
        # The pipeline was opened anew meanwhile.
        return now
    return _sum_flows([(1, now), (-1, before)], now)


def add_flows(flows: Sequence[Flow]) -> Flow | None:
    """Several stretches as one; None when there are none. Stages are those of the last stretch."""
    return _sum_flows([(1, flow) for flow in flows], flows[-1]) if flows else None


def _sum_flows(parts: Sequence[tuple[int, Flow]], named: Flow) -> Flow:
    """The stages and hand-offs of one flow, summed over all that have them, each flow with its sign."""

    def add_up(last: Any) -> Any:
        own = [
            (sign, flow.elapsed_s, each)
            for sign, flow in parts
            for each in (*flow.stages, *flow.handoffs, *flow.preparers, *flow.trainers)
            if isinstance(each, type(last)) and each.name == last.name
        ]
        counted = [each.name for each in fields(last) if each.name not in ("name", "readiness")]
        sums = {name: max(0, sum(sign * getattr(each, name) for sign, _, each in own)) for name in counted}
        elapsed_s = sum(sign * seconds for sign, seconds, _ in own)
        if isinstance(last, HandoffFacts) and elapsed_s > 0:
            ready_s = sum(sign * seconds * each.readiness for sign, seconds, each in own)
            sums["readiness"] = min(1.0, max(0.0, ready_s / elapsed_s))
        return replace(last, **sums)

    return Flow(
        sum(sign * flow.elapsed_s for sign, flow in parts),
        tuple(map(add_up, named.stages)),
        tuple(map(add_up, named.handoffs)),
        tuple(map(add_up, named.preparers)),
        tuple(map(add_up, named.trainers)),
    )
