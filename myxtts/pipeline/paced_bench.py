"""How much of the slowest stage's speed the hand-offs keep: stages that only hold their device for a set time.

It proves the hand-offs alone, and says nothing about what preparing or training costs.

Pipeline efficiency is the slowest stage's time alone, divided by the time per batch in the running pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from myxtts.data.throughput import MOST_STEAL, StealMeter
from myxtts.pipeline.busy_processes import keep_busy
from myxtts.pipeline.handoff import EndOfStream, Handoff
from myxtts.pipeline.paced_task import BATCH_BYTES, hold, make_batch, make_paced_producer
from myxtts.pipeline.patience import Patience
from myxtts.pipeline.ring import copy_arrays
from myxtts.pipeline.stage import Feed, Stage, stop_stages, take_watched

SERIES, DUAL, ISOLATED = "single", "dual", "isolated"
WARM_UP_BATCHES = 10
MOST_ATTEMPTS = 2
"""Runs of a case until one is quiet; then the quietest counts, and is not judged."""


@dataclass(frozen=True)
class PacedCases:
    """What is run: every combination."""

    slowest_s: tuple[float, ...] = (0.050, 0.010)
    """max(p, t)."""
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """p / t: preparation time by training time."""
    busy_processes: tuple[int, ...] = (0, 2)
    engines: tuple[str, ...] = (DUAL, ISOLATED)
    batches: int = 200
    batch_bytes: int = BATCH_BYTES
    alone_items: int = 20


@dataclass(frozen=True)
class PacedOutcome:
    """One paced run."""

    engine: str
    busy_processes: int
    slowest_ms: float
    ratio: float
    alone_ms: float
    """The slowest stage with nothing else to do, measured before and after the run."""
    per_batch_ms: float
    variation: float
    """Of the time per batch: standard deviation by mean."""
    steal: float
    """Share of processor time that the host took away meanwhile."""
    discarded: int = 0
    """Runs of this case that were done again because they were not quiet."""

    @property
    def efficiency(self) -> float:
        return self.alone_ms / self.per_batch_ms

    @property
    def is_quiet(self) -> bool:
        return self.steal <= MOST_STEAL


def bench_pacing(cases: PacedCases) -> Iterator[PacedOutcome]:
    """Runs all cases; the engines take turns."""
    for busy in cases.busy_processes:
        with keep_busy(busy):
            for slowest_s in cases.slowest_s:
                for ratio in cases.ratios:
                    for engine in cases.engines:
                        yield _find_quiet_run(cases, engine, busy, slowest_s, ratio)


def _find_quiet_run(cases: PacedCases, engine: str, busy: int, slowest_s: float, ratio: float) -> PacedOutcome:
    runs: list[PacedOutcome] = []
    while len(runs) < MOST_ATTEMPTS and not (runs and runs[-1].is_quiet):
        runs.append(_measure_run(cases, engine, busy, slowest_s, ratio))
    return replace(min(runs, key=lambda run: run.steal), discarded=len(runs) - 1)


def _measure_run(cases: PacedCases, engine: str, busy: int, slowest_s: float, ratio: float) -> PacedOutcome:
    prepare_s, train_s = slowest_s * min(1.0, ratio), slowest_s * min(1.0, 1.0 / ratio)
    steal = StealMeter()
    before_s = _measure_alone(slowest_s, cases.alone_items)
    done = run_paced(engine, prepare_s, train_s, cases.batches, cases.batch_bytes)
    after_s = _measure_alone(slowest_s, cases.alone_items)
    intervals = np.diff(done[min(WARM_UP_BATCHES, cases.batches // 2) :])
    return PacedOutcome(
        engine=engine,
        busy_processes=busy,
        slowest_ms=slowest_s * 1000,
        ratio=ratio,
        alone_ms=(before_s + after_s) / 2 * 1000,
        per_batch_ms=float(intervals.mean()) * 1000,
        variation=float(intervals.std() / intervals.mean()),
        steal=steal.read_share(),
    )


def _measure_alone(seconds: float, items: int) -> float:
    started = time.perf_counter()
    for _ in range(items):
        hold(seconds)
    return (time.perf_counter() - started) / items


def run_paced(
    engine: str, prepare_s: float, train_s: float, batches: int, batch_bytes: int, transfer_s: float = 0.0
) -> list[float]:
    """The moments at which batches were done, by an engine of a real run with stages that only take time.

    Args:
        transfer_s: added to what copying takes, where there is something to copy: not in series.
    """
    if engine == SERIES:
        return _run_in_series(prepare_s, train_s, batches)

    def transfer(arrays: Any) -> Any:
        hold(transfer_s)
        return copy_arrays(arrays, np.array)

    last: Handoff[Any] = Handoff("on the model device")
    stages: list[Stage[Any, Any]] = []
    with ExitStack() as resources:
        if engine == ISOLATED:
            producer = resources.enter_context(make_paced_producer(prepare_s, batches, batch_bytes))
            stages.append(Stage("transfer", lambda slot: transfer(slot.arrays), producer, last))
        else:
            batch = make_batch(batch_bytes)
            prepared: Handoff[Any] = Handoff("prepared")

            def prepare(_: int) -> Any:
                hold(prepare_s)
                return batch

            stages.append(Stage("prepare", prepare, Feed(iter(range(batches))), prepared))
            stages.append(Stage("transfer", transfer, prepared, last))
        resources.callback(stop_stages, stages)
        for stage in stages:
            stage.start()
        return _consume(last, stages, train_s)


def _run_in_series(prepare_s: float, train_s: float, batches: int) -> list[float]:
    done: list[float] = []
    for _ in range(batches):
        hold(prepare_s)
        hold(train_s)
        done.append(time.perf_counter())
    return done


def _consume(last: Handoff[Any], stages: Sequence[Stage[Any, Any]], train_s: float) -> list[float]:
    """Takes everything as the training thread does, holding each batch for a time."""
    done: list[float] = []
    while True:
        try:
            take_watched(last, stages, Patience())
        except EndOfStream:
            return done
        hold(train_s)
        last.release()
        done.append(time.perf_counter())
