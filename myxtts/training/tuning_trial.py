"""One trial of the configurator: the user's run with some settings, for a few steps, and what was really in force."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import list_logical_devices, start_devices
from myxtts.pipeline.sources import open_source
from myxtts.training.memory_estimate import list_fitting_batches
from myxtts.training.mode_measuring import READ_AHEAD, count_measured_batches, describe_shape, time_best_window
from myxtts.training.profile_run import ProfileLengths, Profiler, SyncedTraining
from myxtts.training.profile_setup import set_up_profile
from myxtts.training.step import TrainStep
from myxtts.training.trainer import apply_devices
from myxtts.utils.commons import get_device_context


def run_trial(config: XTTSConfig, plan: DevicePlan, limit_bytes: int | None) -> dict[str, Any]:
    """What a step takes with these settings, as JSON values (`tuning_search.TrialResult`).

    Args:
        limit_bytes: of the model device's memory, what may be used; None where that is unknown.
    """
    # What is kept from epoch to epoch, or was read long before, would hide what the settings do.
    tried = config.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
    apply_devices(tried, plan)
    pools = start_devices()
    accumulation = tried.training.gradient_accumulation_steps
    with TemporaryDirectory(prefix="myxtts-trial-") as folder, get_device_context(plan.model.device):
        setup = set_up_profile(tried, plan, Path(folder))
        step = setup.build_model().step
        trained = SyncedTraining(step, accumulation=accumulation, retries=tried.training.on_oom == "retry")
        shapes = len(setup.data.sampler.plan.buckets)
        batches = count_measured_batches(shapes, accumulation)
        with closing(open_source(setup.request_source())) as source:
            Profiler(source, trained.train, ProfileLengths(batches, READ_AHEAD, shapes)).warm_up()
            window = time_best_window(source, trained, batches)
        fitting = (
            [] if limit_bytes is None else list_fitting_batches(setup.config, plan, describe_shape(setup), limit_bytes)
        )
        return {
            "step_s": window.batch_s * accumulation,
            "read_share": window.read_s / window.batch_s,
            "fitting": [[choice.batch_size, choice.accumulation] for choice in fitting],
            "in_force": {
                "mode": str(plan.mode),
                "devices": ", ".join(list_logical_devices()),
                "threads inside operations": str(pools.intra_op),
                "threads between operations": str(pools.inter_op),
                "compute precision": str(step.objective.model.compute_dtype),
                "functions compiled by XLA": f"{step.xla_functions} of {step.count_traces()}",
                "weights on": _find_device(step),
                "batch x accumulation": f"{tried.data.batch_size} x {accumulation}",
            },
        }


def _find_device(step: TrainStep) -> str:
    """Where the first weight lies, as TensorFlow says."""
    weight = next(iter(step.optimizer.variables.values())).value
    return f"/{weight.device.rpartition('/device:')[2]}"
