"""One trial of the configurator: the user's run with some settings, for a few steps, and what was really in force."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import start_devices
from myxtts.files import open_scratch_folder
from myxtts.monitoring.errors import MemoryBillError
from myxtts.pipeline.sources import open_source
from myxtts.training.devices_in_force import apply_devices
from myxtts.training.errors import GradientMemoryError, UpdateMemoryError
from myxtts.training.memory_estimate import check_run, list_fitting_batches
from myxtts.training.modes.measuring import READ_AHEAD, count_measured_batches, describe_shape, time_best_window
from myxtts.training.profiling.run import ProfileLengths, Profiler, SyncedTraining
from myxtts.training.profiling.setup import ProfileSetup, set_up_profile
from myxtts.training.tuning.readback import read_devices, read_pipeline, read_step
from myxtts.utils.commons import get_device_context

_OUT_OF_MEMORY = (MemoryBillError, GradientMemoryError, UpdateMemoryError, tf.errors.ResourceExhaustedError)


def run_trial(config: XTTSConfig, plan: DevicePlan, limit_bytes: int | None, *, is_whole: bool) -> dict[str, Any]:
    """What a step takes with these settings, or why there is no memory for them: JSON values of `search.TrialResult`.

    Args:
        limit_bytes: of the model device's memory, what may be used; None where that is unknown.
        is_whole: with the read-ahead and the kept codes that a run would have. Else with neither: what is kept from epoch to
            epoch, or was read long before, would hide what a single setting does.
    """
    tried = config if is_whole else config.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
    apply_devices(tried, plan)
    pools = start_devices()
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
        return {**answer, **measured, "in_force": {**read_devices(plan, pools), **measured["in_force"]}}


def _time_steps(setup: ProfileSetup, *, is_whole: bool) -> dict[str, Any]:
    tried = setup.config
    accumulation = tried.training.gradient_accumulation_steps
    step = setup.build_model().step
    trained = SyncedTraining(step, accumulation=accumulation, retries=tried.training.on_oom == "retry")
    shapes = len(setup.data.sampler.plan.buckets)
    batches = count_measured_batches(shapes, accumulation)
    # Codes that an earlier trial has kept would make a later one look faster.
    with closing(open_source(setup.request_source(keeps_codes_aside=True))) as source:
        lengths = ProfileLengths(batches, tried.data.pipeline_buffer_size, shapes)
        profiler = Profiler(source, trained.train, lengths)
        profiler.warm_up()
        if is_whole:
            profiler.drain()
        window = time_best_window(source, trained, batches)
        # While it is open: reader processes end with the source.
        in_force = read_pipeline(setup, source)
    return {
        "step_s": window.batch_s * accumulation,
        "read_share": window.read_s / window.batch_s,
        "in_force": {**read_step(step, tried), **in_force},
    }
