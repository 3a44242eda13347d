"""The three runs of a profile: the training alone, the pipeline alone, and both together.

Every step is waited for, so that its time is its own and not that of whoever asks for a number later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import tensorflow as tf

from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode, Process
from myxtts.errors import NvmlError
from myxtts.monitoring.machine_sampler import MachineSampler, list_sampled_cards
from myxtts.monitoring.profile_facts import BatchTimes, Profile, ProfiledRun, RoleMemoryFacts
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_source import BatchSource, PipelineFacts
from myxtts.pipeline.batch_spans import Span
from myxtts.pipeline.handoff import SLOTS
from myxtts.pipeline.sources import open_source
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.errors import ProfileError
from myxtts.training.profiling.setup import ProfileSetup
from myxtts.training.step import TrainStep
from myxtts.training.updates import UpdateMaker
from myxtts.utils.commons import get_device_context
from myxtts.utils.gpu_memory import RoleMemory, read_role_memory

FILL_BATCHES = 2 * SLOTS + 2
"""Batches until a pipeline that stood still, with its slots full, is at its own speed."""
WAITED_S = 0.001
"""A batch whose clips took longer was not read ahead: the reading buffer is empty."""
CACHED_REPEATS = 4
"""Of a batch of each shape, before the other runs and after them: a machine that gets busier meanwhile counts in both."""
RATE = 1e-5

Train = Callable[[DeviceBatch], bool]
"""Trains on a batch, returns when it is done, and says whether something was traced for it."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class ProfileLengths:
    """How much is run, in batches."""

    steps: int
    """Of the real run, those that count."""
    read_ahead: int
    """Batches that may have been read before they are asked for."""
    shapes: int = 1
    """Of batches."""

    @property
    def pipeline_batches(self) -> int:
        """Of the run without training."""
        return max(3, self.steps // 2)


class SyncedTraining:
    """A step as every mode does it, waited for."""

    def __init__(self, step: TrainStep, *, accumulation: int, retries: bool):
        self._step = step
        self._updates = UpdateMaker(step, lambda _: RATE, accumulation=accumulation, retries=retries)
        self._one = tf.constant(1.0)
        self._last: tf.Tensor | None = None

    def train(self, batch: DeviceBatch) -> bool:
        """See `Train`."""
        has_traced = self.dispatch(batch)
        self.settle()
        return has_traced

    def dispatch(self, batch: DeviceBatch) -> bool:
        """Trains on a batch as a run does, without waiting for it. Says whether something was traced for it."""
        traces = self._step.count_traces()
        self._last = self._updates.add(batch.tensors, batch.facts)
        return self._step.count_traces() != traces

    def settle(self) -> None:
        """Waits until all that was dispatched is done."""
        # Work of one device is done in the order it was asked for: fetching the last of it waits for all.
        (self._one + 1.0 if self._last is None else self._last).numpy()


class Done(NamedTuple):
    """A batch that was taken and worked on."""

    times: BatchTimes
    bucket: int
    has_traced: bool


@dataclass
class RealRun:
    """What the run with pipeline and training has measured."""

    times: list[BatchTimes] = field(default_factory=list)
    left_out: int = 0
    facts: PipelineFacts = field(default_factory=lambda: PipelineFacts((), (), BatchMeters()))
    buckets: list[int] = field(default_factory=list)
    """Of the batches that count."""


class Profiler:
    """Takes batches from a source and trains on them, or not. For one thread, under the model device's scope."""

    def __init__(self, source: BatchSource, train: Train, lengths: ProfileLengths):
        self._source = source
        self._train = train
        self._lengths = lengths
        self._kept: dict[int, DeviceBatch] = {}
        """One batch of each shape, for the run without the pipeline."""
        self._cached_s: dict[int, list[float]] = defaultdict(list)
        """Seconds of training on those, by shape."""
        self._waits_since = time.perf_counter()

    def keep(self, batch: DeviceBatch) -> None:
        """Has the training alone measured with this batch, where it is the first of its shape."""
        self._kept.setdefault(batch.facts.bucket_number, batch)

    def warm_up(self) -> None:
        """Traces the step for the shapes that come, so that no measured step has to."""
        for _ in range(3 * self._lengths.shapes):
            self._do_batch(lambda batch: batch.facts.bucket_number not in self._kept and self._train(batch))
            if len(self._kept) == self._lengths.shapes:
                return

    def run_pipeline(self) -> list[BatchTimes]:
        """The pipeline alone: batches are taken and thrown away."""
        self.drain()
        return [self._do_batch(_do_nothing).times for _ in range(self._lengths.pipeline_batches)]

    def run_real(self) -> RealRun:
        """Pipeline and training together."""
        run = RealRun()
        skip = FILL_BATCHES
        self._source.read_facts(reset=True)
        # A corpus with many rare shapes traces again and again; it must come to an end all the same.
        for _ in range(FILL_BATCHES + 3 * self._lengths.steps):
            done = self._do_batch(self._train)
            if done.has_traced:
                # While it traced, the pipeline has filled up.
                skip = max(skip, SLOTS + 1)
            if skip:
                skip -= 1
                run.left_out += 1
                if not skip:
                    self._source.read_facts(reset=True)
                continue
            run.times.append(done.times)
            run.buckets.append(done.bucket)
            if len(run.times) == self._lengths.steps:
                break
        if not run.times:
            raise ProfileError(
                f"Every one of {run.left_out} steps was traced anew, so there is none whose time means anything. Profile with "
                "--enable-static-shapes, or with more --num-steps."
            )
        run.facts = self._source.read_facts()
        return run

    def run_cached(self) -> None:
        """The training alone, on batches that are on its device already."""
        for bucket, batch in self._kept.items():
            for _ in range(CACHED_REPEATS):
                began = time.perf_counter()
                if not self._train(batch):
                    self._cached_s[bucket].append(time.perf_counter() - began)

    def list_cached(self, buckets: Sequence[int]) -> list[float]:
        """Seconds per batch of the training alone, for as many batches of each shape as the real run had."""
        return [fmean(self._cached_s[bucket]) for bucket in buckets]

    def drain(self) -> None:
        """Uses up what was read ahead while the step was traced: it would hide how slow reading is."""
        for number in range(self._lengths.read_ahead + FILL_BATCHES):
            done = self._do_batch(_do_nothing)
            if number >= FILL_BATCHES and done.times.spans.read.seconds > WAITED_S:
                return

    def _do_batch(self, work: Train) -> Done:
        batch = self._source.take()
        began = time.perf_counter()
        has_traced = work(batch)
        ended = time.perf_counter()
        # What follows belongs to the wait for the next batch: where nothing runs beside the model, it is prepared now.
        waits_since, self._waits_since = self._waits_since, ended
        self._source.advance()
        self._source.release()
        facts = batch.facts
        self.keep(batch)
        times = BatchTimes(facts.number, batch.spans, Span(waits_since, began), Span(began, ended))
        return Done(times, facts.bucket_number, has_traced)


def profile_run(setup: ProfileSetup, steps: int, tell: Tell) -> Profile:
    """The profile of a run; `tell` hears what is being done."""
    config, plan = setup.config, setup.plan
    run = setup.describe()
    tell(f"building {run.model}")
    with get_device_context(plan.model.device):
        step = setup.build_model().step
        training = SyncedTraining(
            step,
            accumulation=config.training.gradient_accumulation_steps,
            retries=config.training.on_oom == "retry",
        )
        tell("opening the pipeline")
        with closing(open_source(setup.request_source())) as source:
            lengths = ProfileLengths(steps, config.data.pipeline_buffer_size, len(setup.data.sampler.plan.buckets))
            profiler = Profiler(source, training.train, lengths)
            return measure_profile(profiler, run, plan, tell)


def measure_profile(profiler: Profiler, run: ProfiledRun, plan: DevicePlan, tell: Tell) -> Profile:
    """The three runs, with cards and host sampled beside the real one."""
    tell("tracing the step")
    profiler.warm_up()
    tell("run 1 of 3: training without the pipeline")
    profiler.run_cached()
    tell("run 2 of 3: the pipeline without training")
    pipeline = profiler.run_pipeline()
    tell("run 3 of 3: pipeline and training")
    with MachineSampler(list_sampled_cards(plan)) as sampler:
        real = profiler.run_real()
    profiler.run_cached()
    return Profile(
        run=run,
        real=tuple(real.times),
        pipeline=tuple(pipeline),
        cached_s=tuple(profiler.list_cached(real.buckets)),
        left_out=real.left_out,
        handoffs=real.facts.handoffs,
        cache_hits=real.facts.meters.cache_hits,
        cache_misses=real.facts.meters.cache_misses,
        memory=tuple(read_memory(plan)),
        samples=tuple(sampler.samples),
        card_problem=sampler.problem,
    )


def _do_nothing(_: DeviceBatch) -> bool:
    return False


def read_memory(plan: DevicePlan) -> Iterable[RoleMemoryFacts]:
    """What each role holds now, as far as this process can know it."""
    for role in plan.own_roles:
        # In a rehearsal the reading is of this process, whichever role is asked for: it says nothing about either
        # where both are in it.
        is_known = not plan.rehearsal or (role.process is Process.TRAINER and plan.mode is not Mode.DUAL)
        unknown = RoleMemory(role.physical_id, role.device, role.limit_mib, None, None)
        try:
            memory = read_role_memory(role) if is_known else unknown
        except NvmlError:
            # The report says elsewhere what the driver's problem is; its other figures are not lost for that.
            memory = unknown
        yield RoleMemoryFacts(
            str(role.role),
            role.device,
            used_bytes=_to_bytes(memory.used_mb),
            peak_bytes=_to_bytes(memory.peak_mb),
            limit_bytes=_to_bytes(memory.limit_mb),
            pool_bytes=_to_bytes(memory.pool_mb),
            # In a rehearsal it is the memory of the host, which is told as used.
            process_bytes=None if plan.rehearsal else _to_bytes(memory.process_mb),
            context_bytes=_to_bytes(memory.context_mb),
        )


def _to_bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * MIB)
