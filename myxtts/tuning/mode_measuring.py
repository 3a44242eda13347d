"""Measures what the stages of a run cost, for `--mode auto`, with its own model, data and devices. Nothing of it reaches the run itself.

Of the two devices' plan, in one process: the training alone, the pipeline alone, both together, and then one of the devices
doing everything. What it would take if both devices trained is found without a second process: half of a batch is trained on, the
same products of matrices are run on each device and on both at once, and gradients are assumed to cross between cards as fast as a
copy does. That is the best that NCCL, which takes them there, could do: nobody has run it on cards yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.sampler import RowShare
from myxtts.data.task_processes import Work
from myxtts.devices.plan import DevicePlan, load_plan, put_on_one_device
from myxtts.devices.runtime import read_execution
from myxtts.errors import MemoryBillError
from myxtts.pipeline.batch import measure_batch_bytes
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.codes import choose_cache_folder, count_code_bytes, decide_cache, load_codec, make_code_key
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.recipe import BatchRecipe
from myxtts.pipeline.ring import time_ring
from myxtts.training.memory_estimate import FLOAT_BYTES, RunShape, check_run
from myxtts.training.mode import WORKERS, Layout, StageCosts
from myxtts.training.model import apply_devices
from myxtts.training.resume_rules import find_refusal
from myxtts.training.schedule import count_updates
from myxtts.training.step import split_rows
from myxtts.tuning.profiling import MeasuredTraining, Profiler, ProfileSetup, set_up_profile
from myxtts.units import format_bytes
from myxtts.utils.commons import get_device_context

READ_AHEAD = 4
"""Batches, in a measurement: a deep buffer would hide for its whole length how slow reading is."""
FEWEST_BATCHES, MOST_BATCHES = 8, 32
GRPC_BYTES_PER_S = 300e6
"""Between processes without GPUs, as the bench `cluster` found it: docs/benchmarks/2026-11-16-cluster.md."""
_TRIED_BUCKETS = 3
_RING_ROUNDS = 10
_LEAST_RING_BYTES = 1 << 16
_REPEATS = 3
_COPIED_BYTES = 32 << 20
_MATRIX_WIDTH = 512
_PRODUCTS = 24


def make_measurer(config: Mapping[str, Any], folder: str) -> Work:
    """The work of the process: from the plans of all modes that can be had, that of two devices first, to the answer."""
    asked = XTTSConfig(**config)

    def measure(plans: list[Mapping[str, Any]]) -> dict[str, Any]:
        loaded = [load_plan(plan) for plan in plans]
        # What is kept from epoch to epoch would hide what preparing costs.
        measured = asked.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
        apply_devices(measured, loaded[0])
        setup = set_up_profile(measured, loaded[0], Path(folder))
        obstacles = find_obstacles(setup, loaded)
        may_share = Layout.DATA_PARALLEL not in obstacles and find_refusal(asked) is None
        if not may_share and all(str(mode) in obstacles for mode in (Layout.SINGLE, *(plan.mode for plan in loaded))):
            # Says which batch would fit. To measure this one would run out of memory.
            check_run(setup.config, put_on_one_device(setup.plan), describe_shape(setup))
        costs = measure_costs(setup, may_share=may_share, fits_one=Layout.SINGLE not in obstacles)
        return {"costs": asdict(costs), "obstacles": obstacles, "around": describe_codes(asked, setup)}

    return measure


def describe_codes(asked: XTTSConfig, setup: ProfileSetup) -> dict[str, Any]:
    """What the run's own `--cache` will come to: values of `Circumstances`."""
    sampler, recipe = setup.data.sampler, setup.make_recipe()
    epochs = -(-count_updates(asked, sampler, asked.training.stage) // sampler.steps_per_epoch)
    if recipe.codec_folder is None:
        return {"epochs": epochs, "kept_obstacle": "A codec that is trained has none."}
    assert setup.codec is not None
    with get_device_context("/CPU:0"):
        weights = load_codec(recipe.codec_folder).weights
    key = make_code_key(weights, setup.codec.mel_norms, recipe.plan.data.device, read_execution())
    folder = choose_cache_folder(setup.data, setup.folder)
    decision = decide_cache(asked.data.cache, recipe.preparation, setup.data, folder, key, epochs=epochs)
    if decision.policy == "off":
        return {"epochs": epochs, "kept_obstacle": decision.reason}
    kept = choose_cache_folder(setup.data, Path(asked.training.checkpoint_dir))
    where = "in the memory of each process that prepares" if decision.policy == "memory" else f"on the disk, in {kept}"
    return {
        "epochs": epochs,
        "online_obstacle": None if asked.data.cache == "auto" else f"--cache is {asked.data.cache}",
        "policy": decision.policy,
        "place": f"about {format_bytes(count_code_bytes(setup.data))} {where}",
    }


def describe_shape(setup: ProfileSetup) -> RunShape:
    """What the batches of a run look like."""
    preparation = setup.make_recipe().preparation
    return RunShape(setup.config.training.stage, setup.data.sampler.plan.buckets, preparation)


def find_obstacles(setup: ProfileSetup, plans: Sequence[DevicePlan]) -> dict[str, str]:
    """Layout -> why it is known not to fit into memory; nothing for those that may.

    Of two processes that both train each holds the whole model, and half of a batch.
    """
    whole = describe_shape(setup)
    half = replace(whole, buckets=RowShare(0, WORKERS).shrink_all(whole.buckets))
    workers = [put_on_one_device(setup.plan, device) for device in (setup.plan.model, setup.plan.data)]
    tried = [(str(plan.mode), plan, whole) for plan in (*plans, put_on_one_device(setup.plan))]
    obstacles: dict[str, str] = {}
    for layout, plan, shape in (*tried, *((str(Layout.DATA_PARALLEL), plan, half) for plan in workers)):
        try:
            check_run(setup.config, plan, shape)
        except MemoryBillError as error:
            obstacles.setdefault(layout, str(error).partition("\n")[0].rstrip("."))
    return obstacles


def count_measured_batches(shapes: int, accumulation: int) -> int:
    """Batches of one window: some of every shape, and whole updates where these are short."""
    wanted = min(MOST_BATCHES, max(FEWEST_BATCHES, 2 * shapes))
    return -(-wanted // accumulation) * accumulation if accumulation <= MOST_BATCHES else wanted


def measure_costs(setup: ProfileSetup, *, may_share: bool = False, fits_one: bool = True) -> StageCosts:
    """The costs of a run that is set up with the plan of two devices, which must be in force.

    Args:
        may_share: whether both devices may train; then that is measured too.
        fits_one: whether one device has the memory for everything; else what it would take is added up from the stages.
    """
    buckets = setup.data.sampler.plan.buckets
    batches = count_measured_batches(len(buckets), setup.config.training.gradient_accumulation_steps)
    lengths = {"steps": 2 * batches, "read_ahead": READ_AHEAD, "shapes": len(buckets)}
    with get_device_context(setup.plan.model.device):
        training, recipe = MeasuredTraining(setup), setup.make_recipe()
        with closing(setup.open_batches(recipe)) as source:
            profiler = Profiler(source, training, **lengths)
            profiler.warm_up()
            profiler.run_cached()
            alone = [each.spans for each in profiler.run_pipeline()]
            # A shape may come here for the first time, and its training alone is wanted too.
            dual_s, dual = profiler.time_best_window(batches)
            profiler.run_cached()
        prepare_s = fmean(spans.read.seconds + spans.prepare.seconds for spans in alone)
        train_s = fmean(profiler.list_cached(dual))
        single_s, plan = prepare_s + train_s, put_on_one_device(setup.plan) if fits_one else setup.plan
        with closing(setup.open_batches(replace(recipe, plan=plan))) as source:
            if fits_one:
                single_s = Profiler(source, training, **lengths).time_best_window(batches)[0]
            pair = measure_pair(setup.plan, training, source) if may_share else {}
        batch_bytes = round(fmean(measure_batch_bytes(recipe.preparation, each) for each in buckets))
        pack_s, unpack_s = time_ring(max(_LEAST_RING_BYTES, batch_bytes), _RING_ROUNDS)
        return StageCosts(
            prepare_s=prepare_s,
            transfer_s=fmean(spans.transfer.seconds for spans in alone),
            train_s=train_s,
            single_s=single_s,
            dual_s=dual_s,
            codes_s=_measure_codes(setup, recipe),
            pack_s=pack_s,
            unpack_s=unpack_s,
            **pair,
        )


def _measure_codes(setup: ProfileSetup, recipe: BatchRecipe) -> float:
    """Seconds per batch that making its codes takes on the data device; 0 where none are made."""
    if recipe.codec_folder is None:
        return 0.0
    buckets = setup.data.sampler.plan.buckets
    buckets = buckets[:: max(1, len(buckets) // _TRIED_BUCKETS)]
    with get_device_context(recipe.plan.data.device), closing(BatchFactory(setup.data, recipe)) as factory:
        measure = factory.preparer.measure_code_seconds
        return fmean(bucket.rows * measure(bucket.rows, bucket.samples) for bucket in buckets)


def measure_pair(plan: DevicePlan, training: MeasuredTraining, source: Batches) -> dict[str, float]:
    """Values of `StageCosts` that say what two devices would make of training, by name."""
    numbers = sum(int(tf.size(variable.value)) for variable in training.step.optimizer.variables.values())
    pace, crowding = measure_together(plan.model.device, plan.data.device)
    exchange_s, half_share = estimate_exchange(plan, numbers * FLOAT_BYTES), measure_half_share(source, training)
    return {"half_share": half_share, "pace": pace, "crowding": crowding, "exchange_s": exchange_s}


def measure_half_share(source: Batches, training: MeasuredTraining) -> float:
    """Of the training time of a batch, what half of its clips take: half at best, all of it where there is one clip."""
    whole = source.take()
    half = replace(whole, tensors=dict(next(split_rows(whole.tensors, WORKERS))))
    seconds = []
    for batch in (half, whole):
        training.train(batch)
        seconds.append(_time_best(partial(training.train, batch)))
    source.advance()
    source.release()
    return min(1.0, max(1 / WORKERS, seconds[0] / seconds[1]))


def measure_together(first: str, second: str) -> tuple[float, float]:
    """How much slower the second device computes, and how far both stand in each other's way, 0 to 1."""
    first_s, second_s, both_s = (_time_products(devices) for devices in ([first], [second], [first, second]))
    unhidden = (both_s - max(first_s, second_s)) / min(first_s, second_s)
    return second_s / first_s, min(1.0, max(0.0, unhidden))


def estimate_exchange(plan: DevicePlan, gradient_bytes: int) -> float:
    """Seconds in which two processes add up their gradients: each sends as much as it has.

    Without GPUs at the speed that TensorFlow's ring was seen to have. Between cards at that of a copy from one to the other, which
    goes the way that NCCL takes (NVLink, the bus, or the host's memory); what NCCL itself adds to it was never measured.
    """
    if plan.rehearsal:
        # A copy inside one process would say nothing about gRPC between two.
        return gradient_bytes / GRPC_BYTES_PER_S
    with get_device_context(plan.data.device):
        there = tf.zeros([_COPIED_BYTES // FLOAT_BYTES]) + 1.0
    with get_device_context(plan.model.device):
        copy_s = _time_best(lambda: tf.identity(there)[:1])
    return copy_s * gradient_bytes / _COPIED_BYTES


def _time_products(devices: Sequence[str]) -> float:
    """Seconds of the same products on each of some devices, all at once."""

    def compute(matrices: list[tf.Tensor]) -> list[tf.Tensor]:
        sums = []
        for device, matrix in zip(devices, matrices, strict=True):
            with get_device_context(device):
                product = matrix
                for _ in range(_PRODUCTS):
                    product = tf.linalg.matmul(product, matrix)
                sums.append(tf.reduce_sum(product))
        return sums

    matrices = []
    for device in devices:
        with get_device_context(device):
            # Its powers stay what it is: nothing overflows.
            matrices.append(tf.fill([_MATRIX_WIDTH, _MATRIX_WIDTH], 1.0 / _MATRIX_WIDTH))
    function = tf.function(compute, autograph=False)
    function(matrices)
    return _time_best(lambda: tf.add_n([tf.identity(each) for each in function(matrices)]))


def _time_best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some times; a tensor that the work gives is waited for."""
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        if tf.is_tensor(given := work()):
            given.numpy()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
