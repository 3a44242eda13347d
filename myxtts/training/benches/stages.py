"""Preparing and training with real batches, alone, in series or side by side: what `myxtts bench pipeline` times.

Every function here runs in one of the processes that take turns. Times are seconds for a number of batches.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import tensorflow as tf

from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_facts import HOST_ARRAYS
from myxtts.pipeline.batch_meters import METERS
from myxtts.pipeline.batch_source import BatchSource
from myxtts.pipeline.handoff import SLOTS, Handoff
from myxtts.pipeline.preparation import Prepared
from myxtts.pipeline.stage import Feed, Stage
from myxtts.pipeline.staged_source import StagedSource
from myxtts.pipeline.transfer import DeviceBatch, place_batch
from myxtts.training.benches.one_thread import run_calls_in_one_thread
from myxtts.training.benches.run import BenchRun
from myxtts.training.endless_production import NEVER
from myxtts.training.step import Turn
from myxtts.training.trained_model import TrainedModel, build_gpt_step
from myxtts.utils.commons import get_device_context

READY = 2 * SLOTS + 2
"""Batches that a pipeline which stood still has ready at most. A window that starts with them shows training alone for as long
as they last, and two stages of nearly the same speed can live on them for a whole window."""
WARM_UP = 2
"""Batches until a pipeline that starts empty is at its own speed."""
_LOOK_SECONDS = 0.1
_IDLE_SHARE = 0.1
_MOST_IDLE_WAIT_S = 20.0
RATE = 1e-5


def pin_process(cores: set[int]) -> None:
    """Keeps every thread of this process on these cores."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def await_idle() -> None:
    """Waits until this process and its children do nothing: the slots are full again."""
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    deadline = time.monotonic() + _MOST_IDLE_WAIT_S
    before = _read_cpu_seconds(processes)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        now = _read_cpu_seconds(processes)
        if now - before < _IDLE_SHARE * _LOOK_SECONDS:
            return
        before = now


def _read_cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


class Preparation:
    """Makes batches and throws them away, or hands them over as tf.data would."""

    def __init__(self, run: BenchRun):
        self._factory = OneThreadFactory(run.data, run.production, run.plan.data.device)
        self._factory.warm_up()
        self._numbers = itertools.count()

    def run(self, batches: int) -> float:
        """Seconds for so many batches."""
        started = time.perf_counter()
        for _ in range(batches):
            self.make_next()
        return time.perf_counter() - started

    def make_next(self, _: int = 0) -> Prepared:
        """The next batch, really made."""
        prepared = self._factory.make(next(self._numbers))
        self._factory.settle(prepared)
        return prepared

    def iterate_dataset(self, batches: int) -> Iterator[Prepared]:
        """So many batches through `tf.data`, made in its own thread and prefetched as deep as our slots are."""
        first = self.make_next()
        signature = {
            name: tf.TensorSpec([None] * len(array.shape), array.dtype)
            for name, array in first.items()
            if name != METERS
        }

        def generate() -> Iterator[dict[str, Any]]:
            for _ in range(batches):
                prepared = self.make_next()
                yield {name: prepared[name] for name in signature}

        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(SLOTS)
        for tensors in dataset:
            yield {name: tensor.numpy() if name in HOST_ARRAYS else tensor for name, tensor in tensors.items()}

    def close(self) -> None:
        self._factory.close()


class OneThreadFactory(BatchFactory):
    """A factory that keeps to one core."""

    def warm_up(self) -> None:
        with run_calls_in_one_thread():
            super().warm_up()

    def make(self, number: int) -> Prepared:
        with run_calls_in_one_thread():
            return super().make(number)


class Training:
    """Trains on batches, from a source or on the same one again and again."""

    def __init__(self, run: BenchRun):
        self.device = run.plan.model.device
        with get_device_context(self.device):
            self.trained: TrainedModel = build_gpt_step(run.config, run.data, run.codec, None)
        self._kept: DeviceBatch | None = None

    def step(self, batch: DeviceBatch) -> None:
        """One update, done when this returns."""
        step = self.trained.step
        with get_device_context(self.device), run_calls_in_one_thread():
            step.apply(step.compute(batch.tensors, Turn(batch.facts.updates, 0, 1)), RATE).numpy()
        self._kept = self._kept or batch

    def run(self, batches: int) -> float:
        """Seconds for so many updates with the first batch there was: nothing is waited for."""
        batch = self.get_kept()
        started = time.perf_counter()
        for _ in range(batches):
            self.step(batch)
        return time.perf_counter() - started

    def run_source(self, source: BatchSource, batches: int, warm_up: int, ready: int = 0) -> float:
        """Seconds for so many batches of a source, after `ready` that are thrown away and `warm_up` that are not counted."""
        for _ in range(ready):
            source.take()
            source.advance()
            source.release()
        started = 0.0
        for number in range(warm_up + batches):
            if number == warm_up:
                started = time.perf_counter()
            batch = source.take()
            self.step(batch)
            source.advance()
            source.release()
        return time.perf_counter() - started

    def run_prepared(self, prepared: Iterator[Prepared], warm_up: int) -> float:
        """Seconds for all batches of an iterator but the first few, each copied to the model device before its step."""
        started = 0.0
        for number, arrays in enumerate(prepared):
            if number == warm_up:
                started = time.perf_counter()
            self.step(place_batch(arrays, self.device))
        return time.perf_counter() - started

    def get_kept(self) -> DeviceBatch:
        assert self._kept is not None, "no batch was trained on yet"
        return self._kept


def open_one_core_dual_source(run: BenchRun) -> StagedSource:
    """The dual mode's stages and hand-offs, with a data thread that keeps to one core."""
    with ExitStack() as resources:
        factory = OneThreadFactory(run.data, run.production, run.plan.data.device)
        resources.callback(factory.close)
        factory.warm_up()
        prepared: Handoff[Prepared] = Handoff("prepared", run.config.data.prefetch_depth)

        def make(number: int) -> Prepared:
            batch = factory.make(number)
            factory.settle(batch)
            return batch

        return StagedSource(
            prepared,
            unpack=dict,
            stages=[Stage("prepare", make, Feed(iter(range(NEVER))), prepared)],
            resources=resources.pop_all(),
            device=run.plan.model.device,
            start_delay_s=run.config.data.model_start_delay,
        )


def run_side_by_side(prepare: Callable[[int], Any], train: Callable[[int], float], batches: int) -> float:
    """Seconds until so many batches were prepared by one thread and so many trained on by this one, without a hand-off."""
    nowhere = _Nowhere()
    beside: Stage[int, Any] = Stage("prepare", prepare, Feed(iter(range(batches))), nowhere)
    started = time.perf_counter()
    beside.start()
    train(batches)
    beside.join(timeout_s=600.0)
    if nowhere.failure is not None:
        raise nowhere.failure
    return time.perf_counter() - started


class _Nowhere:
    """A sink that always has room, and keeps nothing."""

    failure: BaseException | None = None

    def reserve(self) -> None:
        """There is room."""

    def commit(self, item: Any) -> None:
        """The item goes."""

    def finish(self) -> None:
        """Nobody waits for it."""

    def fail(self, error: BaseException) -> None:
        self.failure = error

    def stop(self) -> None:
        """Nobody waits here."""
