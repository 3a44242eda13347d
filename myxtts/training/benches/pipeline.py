"""The measurement behind `myxtts bench pipeline` with the real model: who gets how much out of two cores.

All contenders run on rehearsal devices of one core each, in processes of their own, and take turns. No TensorFlow here.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from myxtts.data.errors import WorkerError
from myxtts.data.throughput import MOST_STEAL, StealMeter
from myxtts.data.workers import Task, WorkerProcess

SERIES, DUAL, ISOLATED, DATASET = "series", "dual", "isolated", "tf.data prefetch"
THREADS, PROCESSES = "side by side, two threads", "side by side, two processes"
PREPARE, TRAIN = "prepare alone", "train alone"
CLOSE, WATCH = "close", "watch"

CEILINGS: Mapping[str, str] = {DUAL: THREADS, ISOLATED: PROCESSES, DATASET: THREADS}
"""Contender -> the same two stages without a hand-off between them."""
MOST_DISCARDED = 2
_WORKERS = "myxtts.training.benches.worker"


@dataclass(frozen=True)
class ModelCases:
    """How much is run."""

    rounds: int = 3
    batches: int = 14
    """In each window, after the warm-up of a pipeline: whole epochs, so that all windows hold the same clips."""
    watch_rounds: int = 5
    watch_updates: int = 10
    """In each stretch, of which a window has two with and two without a watch: one reading of the losses in each."""


@dataclass(frozen=True)
class ModelOutcome:
    """Seconds per batch, medians over windows."""

    windows: Mapping[str, tuple[float, ...]]
    """By contender, seconds per batch of each window."""
    discarded: int
    noisy: int
    """Windows taken although the host took much away: as many had been discarded before."""
    cores: int

    def get_batch_s(self, name: str) -> float:
        return statistics.median(self.windows[name])

    @property
    def bound(self) -> float:
        """1 + min/max: no way of overlapping the two stages gains more over one device."""
        prepare_s, train_s = self.get_batch_s(PREPARE), self.get_batch_s(TRAIN)
        return 1 + min(prepare_s, train_s) / max(prepare_s, train_s)

    def compute_gain(self, name: str) -> float:
        """How many times as fast as in series."""
        return self.get_batch_s(SERIES) / self.get_batch_s(name)

    def compute_share(self, name: str) -> float:
        """Of the ceiling's speed."""
        return self.get_batch_s(CEILINGS[name]) / self.get_batch_s(name)


@dataclass(frozen=True)
class WatchOutcome:
    """What watching adds to an update."""

    watched_ms: tuple[float, ...]
    """Per update, of each window."""
    unwatched_ms: tuple[float, ...]
    inside_ms: tuple[float, ...]
    """Of an update, spent in the watch's calls and its threads."""
    discarded: int
    noisy: int

    @property
    def inside(self) -> float:
        """What the watch itself takes, as a share of an update without it."""
        return statistics.median(a / b for a, b in zip(self.inside_ms, self.unwatched_ms, strict=True))

    @property
    def costs(self) -> list[float]:
        """Of each window, as a share of an update without it."""
        return [a / b - 1 for a, b in zip(self.watched_ms, self.unwatched_ms, strict=True)]

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)


class BenchProcess:
    """A process that measures when it is asked to."""

    def __init__(self, name: str, settings: Mapping[str, Any]):
        self._worker = WorkerProcess(Task(f"{_WORKERS}:{name}", settings))
        self._answers: list[Any] = []

    def ask(self, item: Any) -> None:
        self._worker.give([item])

    def await_answer(self) -> Any:
        while not self._answers:
            self._answers += [answer for (answer,) in self._worker.receive()]
            if self._worker.is_closed:
                raise WorkerError(
                    f"A process that was to be measured died of signal {self._worker.find_death_signal()}."
                )
        return self._answers.pop(0)

    def stop(self) -> None:
        self._worker.stop()


class ModelBench:
    """The processes of the measurement, started and warm; a context.

    Args:
        folder: where they keep what they need.
    """

    def __init__(self, folder: Path):
        self._cores = sorted(os.sched_getaffinity(0))
        first, last = self._cores[0], self._cores[-1]
        self._open = ExitStack()
        with ExitStack() as on_failure:
            writer = BenchProcess("make_writer", {})
            with _stopping(writer):
                writer.ask(str(folder))
                writer.await_answer()
            self._preparer = self._start(on_failure, "make_preparer", folder, core=first)
            self._trainer = self._start(on_failure, "make_trainer", folder, core=last, producer_core=first)
            self._dual = self._start(on_failure, "make_dual", folder, cores=[first, last])
            self._open = on_failure.pop_all()
        self._discarded = self._noisy = 0

    def __enter__(self) -> ModelBench:
        return self

    def __exit__(self, *failure: object) -> None:
        with self._open:
            if failure[0] is None:
                for process in (self._preparer, self._trainer, self._dual):
                    process.ask([CLOSE, 0])
                    process.await_answer()

    def measure_pipelines(self, cases: ModelCases) -> ModelOutcome:
        """All contenders in turn."""
        self._discarded = self._noisy = 0
        contenders: dict[str, Callable[[], float]] = {
            name: partial(self._time, process, name, cases.batches) for name, process in self._list_contenders().items()
        }
        contenders[PROCESSES] = partial(self._time_both, cases.batches)
        windows: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(cases.rounds):
            for name, contender in contenders.items():
                windows[name].append(self._find_quiet(contender) / cases.batches)
        figures = {name: tuple(times) for name, times in windows.items()}
        return ModelOutcome(figures, self._discarded, self._noisy, len(self._cores))

    def measure_watch(self, cases: ModelCases) -> WatchOutcome:
        """The loop with and without a watch, in turn."""
        self._discarded = self._noisy = 0
        taken = [
            self._find_quiet(partial(self._time, self._trainer, WATCH, cases.watch_updates))
            for _ in range(cases.watch_rounds)
        ]
        per_update = 1000 / cases.watch_updates
        return WatchOutcome(
            watched_ms=tuple(each["watched"] * per_update for each in taken),
            unwatched_ms=tuple(each["unwatched"] * per_update for each in taken),
            inside_ms=tuple(each["inside"] * per_update for each in taken),
            discarded=self._discarded,
            noisy=self._noisy,
        )

    def _list_contenders(self) -> dict[str, BenchProcess]:
        return {
            TRAIN: self._trainer,
            PREPARE: self._preparer,
            SERIES: self._trainer,
            THREADS: self._dual,
            DUAL: self._dual,
            ISOLATED: self._trainer,
            DATASET: self._dual,
        }

    def _time(self, process: BenchProcess, name: str, batches: int) -> Any:
        process.ask([name, batches])
        return process.await_answer()

    def _time_both(self, batches: int) -> float:
        """Both stages in two processes at the same time; over when the slower is done."""
        self._preparer.ask([PREPARE, batches])
        self._trainer.ask([TRAIN, batches])
        seconds: list[float] = [process.await_answer() for process in (self._preparer, self._trainer)]
        return max(seconds)

    def _find_quiet(self, measure: Callable[[], Any]) -> Any:
        """The first window in which the host took little away, or the last tried."""
        for attempt in range(MOST_DISCARDED + 1):
            steal = StealMeter()
            figures = measure()
            if steal.read_share() <= MOST_STEAL:
                return figures
            self._discarded += attempt < MOST_DISCARDED
        self._noisy += 1
        return figures

    def _start(self, closing: ExitStack, name: str, folder: Path, **settings: Any) -> BenchProcess:
        process = BenchProcess(name, {"folder": str(folder), **settings})
        closing.callback(process.stop)
        return process


@contextmanager
def _stopping(process: BenchProcess) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop()
