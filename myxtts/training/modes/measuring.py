"""Measures what the stages of a run cost, with its own model, data and devices. Nothing of it reaches the run itself.

Of the two devices' plan, in one process: the training alone, the pipeline alone, both together, and then one of the devices
doing everything. The process is thrown away afterwards, since TensorFlow's devices cannot be changed once they are set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from myxtts.data.sampler import RowShare
from myxtts.devices.plan import DevicePlan, put_on_one_device
from myxtts.monitoring.errors import MemoryBillError
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_size import measure_batch_bytes
from myxtts.pipeline.batch_source import BatchSource, SourceRequest
from myxtts.pipeline.ring import time_ring
from myxtts.pipeline.sources import open_source
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.errors import ProfileError
from myxtts.training.memory_estimate import RunShape, check_run
from myxtts.training.modes.prediction import WINDOWS, WORKERS, StageCosts
from myxtts.training.profiling.run import FILL_BATCHES, ProfileLengths, Profiler, SyncedTraining
from myxtts.training.profiling.setup import ProfileSetup
from myxtts.training.step import TrainStep
from myxtts.utils.commons import get_device_context

READ_AHEAD = 4
"""Batches, in a measurement: a deep buffer would hide for its whole length how slow reading is."""
FEWEST_BATCHES, MOST_BATCHES = 8, 32
_MOST_WINDOWS = 4
_TRIED_BUCKETS = 3
_RING_ROUNDS = 10
_LEAST_RING_BYTES = 1 << 16

Keep = Callable[[DeviceBatch], None]
"""Sees every batch of a window."""
MeasurePair = Callable[[DevicePlan, TrainStep, BatchSource, SyncedTraining], Mapping[str, float]]
"""Measures what it would take if both devices trained: values of `StageCosts`, by name."""


@dataclass(frozen=True)
class Window:
    """A stretch of batches at full speed."""

    batch_s: float
    read_s: float
    """Of it, waiting for clips beyond what was read ahead."""
    buckets: tuple[int, ...]


class _Trained(NamedTuple):
    """A batch that was taken and trained on."""

    bucket: int
    read_s: float
    has_traced: bool


def count_measured_batches(shapes: int, accumulation: int) -> int:
    """Batches of one window: some of every shape, and whole updates where these are short."""
    wanted = min(MOST_BATCHES, max(FEWEST_BATCHES, 2 * shapes))
    return -(-wanted // accumulation) * accumulation if accumulation <= MOST_BATCHES else wanted


def measure_costs(setup: ProfileSetup, measure_pair: MeasurePair | None = None, *, fits_one: bool = True) -> StageCosts:
    """The costs of a run that is set up with the plan of two devices, which must be in force.

    Args:
        measure_pair: also measures both devices training; None where they may not.
        fits_one: whether one device has the memory for everything; else what it would take is added up from the stages.
    """
    training = setup.config.training
    accumulation = training.gradient_accumulation_steps
    shapes = len(setup.data.sampler.plan.buckets)
    batches = count_measured_batches(shapes, accumulation)
    with get_device_context(setup.plan.model.device):
        step = setup.build_model().step
        trained = SyncedTraining(step, accumulation=accumulation, retries=training.on_oom == "retry")
        request = setup.request_source()
        with closing(open_source(request)) as source:
            profiler = Profiler(source, trained.train, ProfileLengths(2 * batches, READ_AHEAD, shapes))
            profiler.warm_up()
            profiler.run_cached()
            alone = [each.spans for each in profiler.run_pipeline()]
            # A shape may come here for the first time, and its training alone is wanted too.
            dual = time_best_window(source, trained, batches, profiler.keep)
            profiler.run_cached()
        prepare_s = fmean(spans.read.seconds + spans.prepare.seconds for spans in alone)
        train_s = fmean(profiler.list_cached(dual.buckets))
        plan = put_on_one_device(setup.plan) if fits_one else setup.plan
        with closing(open_source(replace(request, plan=plan))) as source:
            single_s = time_best_window(source, trained, batches).batch_s if fits_one else prepare_s + train_s
            pair = measure_pair(setup.plan, step, source, trained) if measure_pair is not None else {}
        pack_s, unpack_s = time_ring(_count_batch_bytes(request), _RING_ROUNDS)
        return StageCosts(
            prepare_s=prepare_s,
            transfer_s=fmean(spans.transfer.seconds for spans in alone),
            train_s=train_s,
            single_s=single_s,
            dual_s=dual.batch_s,
            codes_s=_measure_codes(request),
            pack_s=pack_s,
            unpack_s=unpack_s,
            **pair,
        )


def time_best_window(
    source: BatchSource, training: SyncedTraining, batches: int, keep: Keep = lambda _: None
) -> Window:
    """The fastest of some windows."""
    windows = (time_window(source, training, batches, keep) for _ in range(WINDOWS))
    return min(windows, key=lambda window: window.batch_s)


def time_window(source: BatchSource, training: SyncedTraining, batches: int, keep: Keep = lambda _: None) -> Window:
    """The mean time of a batch at full speed, of a window in which nothing was traced."""
    for _ in range(_MOST_WINDOWS):
        for _ in range(FILL_BATCHES):
            _train_next(source, training, keep)
        training.settle()
        began = time.perf_counter()
        done = [_train_next(source, training, keep) for _ in range(batches)]
        training.settle()
        seconds = time.perf_counter() - began
        if not any(each.has_traced for each in done):
            read_s = fmean(each.read_s for each in done)
            return Window(seconds / batches, read_s, tuple(each.bucket for each in done))
    raise ProfileError(
        f"The step was traced anew in each of {_MOST_WINDOWS} stretches of {batches} batches, so there is none whose time means "
        "anything. Use --enable-static-shapes, or give --mode instead of auto."
    )


def describe_shape(setup: ProfileSetup) -> RunShape:
    """What the batches of a run look like."""
    preparation = setup.request_source().production.preparation
    return RunShape(setup.config.training.stage, setup.data.sampler.plan.buckets, preparation)


def find_memory_obstacles(setup: ProfileSetup, plans: Sequence[DevicePlan]) -> dict[str, str]:
    """Mode -> why its plan is known not to fit into memory; nothing for those that may."""
    shape = describe_shape(setup)
    obstacles = {}
    for plan in plans:
        try:
            check_run(setup.config, plan, shape)
        except MemoryBillError as error:
            obstacles[str(plan.mode)] = str(error).partition("\n")[0].rstrip(".")
    return obstacles


def refuse_without_room(setup: ProfileSetup, plans: Sequence[DevicePlan], obstacles: Mapping[str, str]) -> None:
    """Raises `MemoryBillError`, with a batch that would fit, where no plan does: to measure it would run out of memory."""
    if all(str(plan.mode) in obstacles for plan in plans):
        check_run(setup.config, plans[-1], describe_shape(setup))


def find_workers_obstacle(setup: ProfileSetup) -> str | None:
    """Why two processes that both train are known not to fit into memory: each holds the whole model, and half of a batch."""
    whole = describe_shape(setup)
    half = replace(whole, buckets=RowShare(0, WORKERS).shrink_all(whole.buckets))
    for device in (setup.plan.model, setup.plan.data):
        try:
            check_run(setup.config, put_on_one_device(setup.plan, device), half)
        except MemoryBillError as error:
            return str(error).partition("\n")[0].rstrip(".")
    return None


def _train_next(source: BatchSource, training: SyncedTraining, keep: Keep) -> _Trained:
    batch = source.take()
    keep(batch)
    has_traced = training.dispatch(batch)
    source.advance()
    source.release()
    return _Trained(batch.facts.bucket_number, batch.spans.read.seconds, has_traced)


def _count_batch_bytes(request: SourceRequest) -> int:
    buckets = request.data.sampler.plan.buckets
    return max(
        _LEAST_RING_BYTES,
        round(fmean(measure_batch_bytes(request.production.preparation, bucket) for bucket in buckets)),
    )


def _measure_codes(request: SourceRequest) -> float:
    """Seconds per batch that making its codes takes on the data device; 0 where none are made."""
    if request.production.codec_folder is None:
        return 0.0
    buckets = request.data.sampler.plan.buckets[:: max(1, len(request.data.sampler.plan.buckets) // _TRIED_BUCKETS)]
    device = request.plan.data.device
    with get_device_context(device):
        factory = BatchFactory(request.data, request.production, device)
        try:
            return fmean(
                bucket.rows * factory.preparer.measure_code_seconds(bucket.rows, bucket.samples) for bucket in buckets
            )
        finally:
            factory.close()
