"""Runs that are measured: the training alone, the pipeline alone, and both together.

Every step is waited for, so that its time is its own and not that of whoever asks for a number later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import tensorflow as tf

from myxtts.monitoring.profile_facts import BatchTimes
from myxtts.pipeline.batch import Batch, Span
from myxtts.pipeline.batches import Batches, PipelineFacts
from myxtts.pipeline.slots import SLOTS
from myxtts.training.errors import ProfileError
from myxtts.training.profiling.setup import ProfileSetup
from myxtts.training.step import UpdateMaker

FILL_BATCHES = 2 * SLOTS + 2
"""Batches until a pipeline that stood still, with its slots full, is at its own speed."""
WAITED_S = 0.001
"""A batch whose clips took longer was not read ahead: the reading buffer is empty."""
CACHED_REPEATS = 4
"""Of a batch of each shape, before the other runs and after them: a machine that gets busier meanwhile counts in both."""
RATE = 1e-5
WINDOWS = 2
"""In which a mode is timed; the faster counts. Eight batches are soon spoilt by a hiccup of the machine, and never sped up."""
_MOST_WINDOWS = 4

Train = Callable[[Batch], bool]
"""Trains on a batch, and says whether something was traced for it."""


class SyncedTraining:
    """A step as every mode does it, of the model of a run that is set up. Build it under the model device's scope."""

    def __init__(self, setup: ProfileSetup):
        training = setup.config.training
        self.step = setup.build_model().step
        self._updates = UpdateMaker(
            self.step,
            lambda _: RATE,
            accumulation=training.gradient_accumulation_steps,
            retries=training.on_oom == "retry",
        )
        self._last: tf.Tensor | None = None

    def train(self, batch: Batch) -> bool:
        """Trains on a batch and waits for it. See `Train`."""
        has_traced = self.dispatch(batch)
        self.settle()
        return has_traced

    def dispatch(self, batch: Batch) -> bool:
        """Trains on a batch as a run does, without waiting for it. See `Train`."""
        traces = self.step.count_traces()
        self._last = self._updates.add(batch.tensors, batch.info.facts)
        return self.step.count_traces() != traces

    def settle(self) -> None:
        """Waits until all that was dispatched is done."""
        # Work of one device is done in the order it was asked for: fetching the last of it waits for all.
        (tf.constant(1.0) + 1.0 if self._last is None else self._last).numpy()


class Window(NamedTuple):
    """A stretch of batches at full speed."""

    batch_s: float
    read_s: float
    """Of it, waiting for clips beyond what was read ahead."""
    buckets: Sequence[int]


class RealRun(NamedTuple):
    """What the run with pipeline and training has measured."""

    times: list[BatchTimes]
    buckets: list[int]
    left_out: int
    facts: PipelineFacts


class Profiler:
    """Takes batches from a source and trains on them, or not. For one thread, under the model device's scope.

    Args:
        steps: batches of the real run that count.
        read_ahead: batches that may have been read before they are asked for.
        shapes: of batches.
    """

    def __init__(self, source: Batches, training: SyncedTraining, *, steps: int, read_ahead: int = 0, shapes: int = 1):
        self._source = source
        self._training = training
        self._steps = steps
        self._read_ahead = read_ahead
        self._shapes = shapes
        self._kept: dict[int, Batch] = {}
        """One batch of each shape, for the run without the pipeline."""
        self._cached_s: dict[int, list[float]] = defaultdict(list)
        """Seconds of training on those, by shape."""
        self._waits_since = time.perf_counter()

    def warm_up(self) -> None:
        """Traces the step for the shapes that come, so that no measured step has to."""
        for _ in range(3 * self._shapes):
            self._do_batch(
                lambda batch: batch.info.facts.bucket_number not in self._kept and self._training.train(batch)
            )
            if len(self._kept) == self._shapes:
                return

    def run_pipeline(self) -> list[BatchTimes]:
        """The pipeline alone: batches are taken and thrown away."""
        self.drain()
        return [self._do_batch(lambda _: False)[0] for _ in range(max(3, self._steps // 2))]

    def run_real(self) -> RealRun:
        """Pipeline and training together."""
        times, buckets, left_out, skip = list[BatchTimes](), list[int](), 0, FILL_BATCHES
        self._source.read_facts(reset=True)
        # A corpus with many rare shapes traces again and again; it must come to an end all the same.
        for _ in range(FILL_BATCHES + 3 * self._steps):
            done, bucket, has_traced = self._do_batch(self._training.train)
            if has_traced:
                # While it traced, the pipeline has filled up.
                skip = max(skip, SLOTS + 1)
            if skip:
                skip -= 1
                left_out += 1
                if not skip:
                    self._source.read_facts(reset=True)
                continue
            times.append(done)
            buckets.append(bucket)
            if len(times) == self._steps:
                break
        if not times:
            raise ProfileError(
                f"Every one of {left_out} steps was traced anew, so there is none whose time means anything. Profile with "
                "--enable-static-shapes, or with more --num-steps."
            )
        return RealRun(times, buckets, left_out, self._source.read_facts())

    def time_best_window(self, batches: int) -> Window:
        """The faster of some windows in which nothing was traced: the mean time of a batch at full speed."""
        return min((self._time_window(batches) for _ in range(WINDOWS)), key=lambda window: window.batch_s)

    def _time_window(self, batches: int) -> Window:
        for _ in range(_MOST_WINDOWS):
            self._dispatch(FILL_BATCHES)
            began = time.perf_counter()
            times, buckets, traced = zip(*self._dispatch(batches), strict=True)
            seconds = time.perf_counter() - began
            if not any(traced):
                return Window(seconds / batches, fmean(each.spans.read.seconds for each in times), buckets)
        raise ProfileError(
            f"The step was traced anew in each of {_MOST_WINDOWS} stretches of {batches} batches, so there is none whose time means "
            "anything. Use --enable-static-shapes, or give --mode instead of auto."
        )

    def _dispatch(self, batches: int) -> list[tuple[BatchTimes, int, bool]]:
        done = [self._do_batch(self._training.dispatch) for _ in range(batches)]
        self._training.settle()
        return done

    def run_cached(self) -> None:
        """The training alone, on batches that are on its device already."""
        for bucket, batch in self._kept.items():
            for _ in range(CACHED_REPEATS):
                began = time.perf_counter()
                if not self._training.train(batch):
                    self._cached_s[bucket].append(time.perf_counter() - began)

    def list_cached(self, buckets: Sequence[int]) -> list[float]:
        """Seconds per batch of the training alone, for as many batches of each shape as the real run had."""
        return [fmean(self._cached_s[bucket]) for bucket in buckets]

    def drain(self) -> None:
        """Uses up what was read ahead while the step was traced: it would hide how slow reading is."""
        for number in range(self._read_ahead + FILL_BATCHES):
            done, *_ = self._do_batch(lambda _: False)
            if number >= FILL_BATCHES and done.spans.read.seconds > WAITED_S:
                return

    def _do_batch(self, work: Train) -> tuple[BatchTimes, int, bool]:
        """Times and shape of the next batch, and whether something was traced for it."""
        batch = self._source.take()
        began = time.perf_counter()
        has_traced = work(batch)
        ended = time.perf_counter()
        # What follows belongs to the wait for the next batch: where nothing runs beside the model, it is prepared now.
        waits_since, self._waits_since = self._waits_since, ended
        self._source.advance()
        self._source.release()
        self._kept.setdefault(batch.info.facts.bucket_number, batch)
        times = BatchTimes(batch.info.facts.number, batch.info.spans, Span(waits_since, began), Span(began, ended))
        return times, batch.info.facts.bucket_number, has_traced
