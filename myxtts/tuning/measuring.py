"""What is measured in a process of its own: what the stages of a run cost, for `--mode auto`, and trials, for `myxtts configure`.

All with the user's own model, data and devices, in a folder that is thrown away. Nothing of it reaches the run itself."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data import task_processes
from myxtts.data.loaders import Engine, choose_engine, choose_read_ahead
from myxtts.data.task_processes import Work
from myxtts.devices.plan import DevicePlan, Mode, load_plan, put_on_one_device
from myxtts.devices.runtime import list_logical_devices, read_execution, start_devices
from myxtts.errors import GradientMemoryError, MemoryBillError, NvmlError, UpdateMemoryError
from myxtts.files import open_scratch_folder
from myxtts.pipeline.batch import measure_batch_bytes
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.codes import choose_cache_folder, count_code_bytes, decide_cache, load_codec, make_code_key
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.ring import time_ring
from myxtts.pipeline.threads import SLOTS
from myxtts.training.memory_estimate import RunShape, check_run, list_fitting_batches
from myxtts.training.mode import StageCosts, name_layout
from myxtts.training.model import apply_devices
from myxtts.training.peers import open_strategy
from myxtts.training.schedule import count_updates
from myxtts.tuning.configure import VARIABLES
from myxtts.tuning.profiling import MeasuredTraining, Profiler, ProfileSetup, set_up_profile
from myxtts.units import UNKNOWN, format_bytes
from myxtts.utils.commons import get_device_context
from myxtts.utils.gpu_memory import read_role_memory

READ_AHEAD = 4
"""Batches, in a measurement: a deep buffer would hide for its whole length how slow reading is."""
FEWEST_BATCHES, MOST_BATCHES = 8, 32
_TRIED_BUCKETS = 3
_RING_ROUNDS, _SUM_ROUNDS = 10, 3
_MOST_SUMMED = 1 << 24
"""Gradients that are added up to see how long all take."""
_LEAST_RING_BYTES = 1 << 16


def make_measurer(config: Mapping[str, Any], folder: str) -> Work:
    """For `--mode auto`: from the plans of all modes that can be had, that of two devices first, to costs and circumstances."""
    asked = XTTSConfig(**config)

    def measure(plans: list[Mapping[str, Any]]) -> dict[str, Any]:
        loaded = [load_plan(plan) for plan in plans]
        # What is kept from epoch to epoch would hide what preparing costs.
        measured = asked.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
        apply_devices(measured, loaded[0])
        setup = set_up_profile(measured, loaded[0], Path(folder))
        alone = put_on_one_device(setup.plan)
        obstacles = find_obstacles(setup, (*loaded, alone))
        if all(plan.others or str(plan.mode) in obstacles for plan in (*loaded, alone)):
            # Says which batch would fit. To measure this one would run out of memory.
            check_run(setup.config, alone, describe_shape(setup))
        is_shared = any(plan.others for plan in loaded)
        costs = measure_costs(setup, fits_one=Mode.SINGLE not in obstacles, is_shared=is_shared)
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
    """Mode -> why it is known not to fit into memory; nothing for those that may."""
    obstacles: dict[str, str] = {}
    for plan in plans:
        try:
            check_run(setup.config, plan, describe_shape(setup))
        except MemoryBillError as error:
            obstacles[name_layout(plan.mode, len(plan.trainers))] = str(error).partition("\n")[0].rstrip(".")
    return obstacles


def count_measured_batches(shapes: int, accumulation: int) -> int:
    """Batches of one window: some of every shape, and whole updates where these are short."""
    wanted = min(MOST_BATCHES, max(FEWEST_BATCHES, 2 * shapes))
    return -(-wanted // accumulation) * accumulation if accumulation <= MOST_BATCHES else wanted


def time_exchange(plan: DevicePlan, gradients: int) -> float:
    """Seconds in which both devices of a plan add up so many gradients: those of the first of them, as often as it takes."""
    some, strategy, seconds = min(gradients, _MOST_SUMMED), open_strategy(replace(plan, others=(plan.data,))), []

    def add_up() -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([some]))

    function = tf.function(lambda: strategy.run(add_up), autograph=False)
    # The first round traces, and has NCCL's two ends meet.
    for _ in range(1 + _SUM_ROUNDS):
        began_s = time.perf_counter()
        total = float(strategy.experimental_local_results(function())[0][0])
        seconds.append(time.perf_counter() - began_s)
        assert total == 2, "each counts once"
    return min(seconds[1:]) * gradients / some


def measure_costs(setup: ProfileSetup, *, fits_one: bool = True, is_shared: bool = False) -> StageCosts:
    """The costs of a run that is set up with the plan of two devices, which must be in force.
    Where one device has not the memory for everything (`fits_one`), what it would take is added up from the stages.
    What it takes two devices to share a batch is measured where they may (`is_shared`)."""
    buckets = setup.data.sampler.plan.buckets
    batches = count_measured_batches(len(buckets), setup.config.training.gradient_accumulation_steps)
    lengths = {"steps": 2 * batches, "read_ahead": READ_AHEAD, "shapes": len(buckets)}
    with get_device_context(setup.plan.model.device):
        training, recipe = MeasuredTraining(setup), setup.make_recipe()
        with closing(setup.open_batches(recipe)) as source:
            profiler = Profiler(source, training, **lengths)
            profiler.warm_up()
            if is_shared:
                profiler.keep_half()
            profiler.run_cached()
            alone = [each.spans for each in profiler.run_pipeline()]
            # A shape may come here for the first time, and its training alone is wanted too.
            dual_s, dual = profiler.time_best_window(batches)
            profiler.run_cached()
        prepare_s = fmean(spans.read.seconds + spans.prepare.seconds for spans in alone)
        train_s = fmean(profiler.list_cached(dual))
        single_s = prepare_s + train_s
        if fits_one:
            with closing(setup.open_batches(replace(recipe, plan=put_on_one_device(setup.plan)))) as source:
                single_s = Profiler(source, training, **lengths).time_best_window(batches)[0]
        half_s = exchange_s = codes_s = 0.0
        if is_shared:
            half_s = train_s * profiler.measure_half()
            exchange_s = time_exchange(setup.plan, sum(math.prod(each.shape) for each in training.step.optimizer.packs))
        if recipe.codec_folder is not None:
            tried = buckets[:: max(1, len(buckets) // _TRIED_BUCKETS)]
            with get_device_context(recipe.plan.data.device), closing(BatchFactory(setup.data, recipe)) as factory:
                measure = factory.preparer.measure_code_seconds
                codes_s = fmean(bucket.rows * measure(bucket.rows, bucket.samples) for bucket in tried)
        batch_bytes = round(fmean(measure_batch_bytes(recipe.preparation, each) for each in buckets))
        pack_s, unpack_s = time_ring(max(_LEAST_RING_BYTES, batch_bytes), _RING_ROUNDS)
        return StageCosts(
            prepare_s=prepare_s,
            transfer_s=fmean(spans.transfer.seconds for spans in alone),
            train_s=train_s,
            single_s=single_s,
            dual_s=dual_s,
            codes_s=codes_s,
            pack_s=pack_s,
            unpack_s=unpack_s,
            half_s=half_s,
            exchange_s=exchange_s,
        )


_OUT_OF_MEMORY = (MemoryBillError, GradientMemoryError, UpdateMemoryError, tf.errors.ResourceExhaustedError)


def run_trial(config: XTTSConfig, plan: DevicePlan, limit_bytes: int | None, *, is_whole: bool) -> dict[str, Any]:
    """What a step takes with these settings, or why there is no memory for them: JSON values of `configure.TrialResult`.

    Args:
        limit_bytes: of the model device's memory, what may be used; None where that is unknown.
        is_whole: with the read-ahead and the kept codes that a run would have. Else with neither: what is kept from epoch to
            epoch, or was read long before, would hide what a single setting does.
    """
    tried = config if is_whole else config.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
    apply_devices(tried, plan)
    threads = start_devices()
    with open_scratch_folder("trial") as folder, get_device_context(plan.model.device):
        setup = set_up_profile(tried, plan, folder)
        shape = describe_shape(setup)
        fitting = [] if limit_bytes is None else list_fitting_batches(setup.config, plan, shape, limit_bytes)
        answer = {"fitting": [[choice.batch_size, choice.accumulation] for choice in fitting]}
        try:
            # As a run is refused before it begins: what it would take by the minute is of no use then.
            check_run(setup.config, plan, shape)
            measured = _time_steps(setup, is_whole=is_whole)
        except _OUT_OF_MEMORY as error:
            return {**answer, "refusal": str(error)}
        return {**answer, **measured, "in_force": {**_read_devices(plan, threads), **measured["in_force"]}}


def _time_steps(setup: ProfileSetup, *, is_whole: bool) -> dict[str, Any]:
    tried, training = setup.config, MeasuredTraining(setup)
    accumulation, shapes = tried.training.gradient_accumulation_steps, len(setup.data.sampler.plan.buckets)
    batches = count_measured_batches(shapes, accumulation)
    # Codes that an earlier trial has kept would make a later one look faster.
    with closing(setup.open_batches(setup.make_recipe(keeps_codes_aside=True))) as source:
        read_ahead = tried.data.pipeline_buffer_size
        profiler = Profiler(source, training, steps=batches, read_ahead=read_ahead, shapes=shapes)
        profiler.warm_up()
        if is_whole:
            profiler.drain()
        batch_s, times = profiler.time_best_window(batches)
        # While it is open: reader processes end with the source.
        step, clips = training.step, tried.data.batch_size
        weight = next(iter(step.optimizer.variables.values())).value
        in_force = {
            "compute precision": str(step.objective.model.compute_dtype),
            "functions compiled by XLA": f"{step.xla_functions} of {step.count_traces()}",
            "weights on": f"/{weight.device.rpartition('/device:')[2]}",
            "batch x accumulation": f"{clips} x {accumulation}",
            **_read_pipeline(setup, source),
        }
    read_share = fmean(each.spans.read.seconds for each in times) / batch_s
    return {"step_s": batch_s * accumulation, "read_share": read_share, "in_force": in_force}


def _read_devices(plan: DevicePlan, threads: int) -> dict[str, str]:
    """Mode, devices, their memory, and threads with the variables that set them."""
    memory = {}
    for role in (plan.data, plan.model):
        peak_mb = None
        with suppress(NvmlError):
            peak_mb = None if role.memory is None else read_role_memory(role).peak_mb
        peak = UNKNOWN if peak_mb is None else f"{peak_mb:.0f} MB"
        used = "of the host, as needed" if role.memory is None else f"{role.memory}, peak {peak}"
        memory[f"memory of {role.role} device"] = used
    return {
        "mode": str(plan.mode),
        "devices": ", ".join(list_logical_devices()),
        **memory,
        "threads inside and between operations": str(threads),
        **{name: os.environ.get(name, "not set") for name in VARIABLES},
    }


def _read_pipeline(setup: ProfileSetup, source: Batches) -> dict[str, str]:
    """Readers, buffers and kept codes of a source that is open."""
    data, mode = setup.config.data, setup.plan.mode
    corpora = [setup.data.train, setup.data.validation][: 2 if len(setup.data.validation) else 1]
    (engine, _), readers = choose_engine(data, corpora), 0
    # Processes that read for this one, or for its producer, at this moment.
    for child in psutil.Process().children(recursive=True):
        # It may have ended since it was listed.
        with suppress(psutil.NoSuchProcess):
            readers += task_processes.__name__ in child.cmdline()
    meters = source.read_facts().meters
    clips = meters.cache_hits + meters.cache_misses
    # Fixed by how these modes hand batches over; no setting changes it.
    prepared = "1, on the model device" if mode is Mode.SINGLE else f"{SLOTS}, in shared host memory"
    if mode is Mode.DUAL:
        prepared = f"{data.prefetch_depth}, on {'the data device' if data.prefetch_to_gpu else 'the host'}"
    sampler, clips_per_row = setup.data.sampler, 2 if setup.make_recipe().reads_prompts else 1
    ahead = choose_read_ahead(data, [sampler.plan], accumulation=sampler.accumulation, clips_per_row=clips_per_row)
    processes = f"{readers} process{'es' * (readers > 1)}"
    return {
        "readers": processes if readers else f"no process of their own: {engine} reads",
        "batches read ahead": "none" if engine is Engine.HERE else str(ahead.depth),
        "batches prepared ahead": prepared,
        "codes found": f"of {meters.cache_hits} of {clips} clips" if clips else "none: no codes are kept",
    }
