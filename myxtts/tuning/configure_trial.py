"""One trial of the configurator: the user's run with some settings, for a few steps, and what was really in force."""

from __future__ import annotations

import os
from contextlib import closing
from statistics import fmean
from typing import Any

import psutil
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data import task_processes
from myxtts.data.loaders import Engine, choose_engine, choose_read_ahead
from myxtts.devices.plan import DevicePlan, Mode, RolePlan
from myxtts.devices.runtime import list_logical_devices, start_devices
from myxtts.errors import GradientMemoryError, MemoryBillError, NvmlError, UpdateMemoryError
from myxtts.files import open_scratch_folder
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.threads import SLOTS
from myxtts.training.memory_estimate import check_run, list_fitting_batches
from myxtts.training.model import apply_devices
from myxtts.training.step import TrainStep
from myxtts.tuning.configure import VARIABLES
from myxtts.tuning.mode_measuring import READ_AHEAD, count_measured_batches, describe_shape
from myxtts.tuning.profiling import MeasuredTraining, Profiler, ProfileSetup, set_up_profile
from myxtts.units import UNKNOWN
from myxtts.utils.commons import get_device_context
from myxtts.utils.gpu_memory import read_role_memory

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
        in_force = {**_read_step(training.step, tried), **_read_pipeline(setup, source)}
    read_share = fmean(each.spans.read.seconds for each in times) / batch_s
    return {"step_s": batch_s * accumulation, "read_share": read_share, "in_force": in_force}


def _read_devices(plan: DevicePlan, threads: int) -> dict[str, str]:
    """Mode, devices, their memory, and threads with the variables that set them."""
    return {
        "mode": str(plan.mode),
        "devices": ", ".join(list_logical_devices()),
        **{f"memory of {role.role} device": _describe_memory(role) for role in (plan.data, plan.model)},
        "threads inside and between operations": str(threads),
        **{name: os.environ.get(name, "not set") for name in VARIABLES},
    }


def _describe_memory(role: RolePlan) -> str:
    if role.memory is None:
        return "of the host, as needed"
    try:
        peak_mb = read_role_memory(role).peak_mb
    except NvmlError:
        peak_mb = None
    return f"{role.memory}, peak {UNKNOWN if peak_mb is None else f'{peak_mb:.0f} MB'}"


def _read_step(step: TrainStep, config: XTTSConfig) -> dict[str, str]:
    """What the training step computes with."""
    weight = next(iter(step.optimizer.variables.values())).value
    return {
        "compute precision": str(step.objective.model.compute_dtype),
        "functions compiled by XLA": f"{step.xla_functions} of {step.count_traces()}",
        "weights on": f"/{weight.device.rpartition('/device:')[2]}",
        "batch x accumulation": f"{config.data.batch_size} x {config.training.gradient_accumulation_steps}",
    }


def _read_pipeline(setup: ProfileSetup, source: Batches) -> dict[str, str]:
    """Readers, buffers and kept codes of a source that is open."""
    data, mode = setup.config.data, setup.plan.mode
    corpora = [setup.data.train, setup.data.validation][: 2 if len(setup.data.validation) else 1]
    (engine, _), readers = choose_engine(data, corpora), _count_readers()
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


def _count_readers() -> int:
    """Processes that read for this one, or for its producer, at this moment."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        try:
            found += task_processes.__name__ in child.cmdline()
        except psutil.NoSuchProcess:
            # It ended since it was listed.
            continue
    return found
