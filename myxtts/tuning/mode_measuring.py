"""Measures what the stages of a run cost, for `--mode auto`, with its own model, data and devices. Nothing of it reaches the run itself.

Of the two devices' plan, in one process: the training alone, the pipeline alone, both together, and then one device doing everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.data.task_processes import Work
from myxtts.devices.plan import DevicePlan, Mode, load_plan, put_on_one_device
from myxtts.devices.runtime import read_execution
from myxtts.errors import MemoryBillError
from myxtts.pipeline.batch import measure_batch_bytes
from myxtts.pipeline.codes import choose_cache_folder, count_code_bytes, decide_cache, load_codec, make_code_key
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.recipe import BatchRecipe
from myxtts.pipeline.ring import time_ring
from myxtts.training.memory_estimate import RunShape, check_run
from myxtts.training.mode import StageCosts
from myxtts.training.model import apply_devices
from myxtts.training.schedule import count_updates
from myxtts.tuning.profiling import MeasuredTraining, Profiler, ProfileSetup, set_up_profile
from myxtts.units import format_bytes
from myxtts.utils.commons import get_device_context

READ_AHEAD = 4
"""Batches, in a measurement: a deep buffer would hide for its whole length how slow reading is."""
FEWEST_BATCHES, MOST_BATCHES = 8, 32
_TRIED_BUCKETS = 3
_RING_ROUNDS = 10
_LEAST_RING_BYTES = 1 << 16


def make_measurer(config: Mapping[str, Any], folder: str) -> Work:
    """The work of the process: from the plans of all modes that can be had, that of two devices first, to the answer."""
    asked = XTTSConfig(**config)

    def measure(plans: list[Mapping[str, Any]]) -> dict[str, Any]:
        loaded = [load_plan(plan) for plan in plans]
        # What is kept from epoch to epoch would hide what preparing costs.
        measured = asked.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
        apply_devices(measured, loaded[0])
        setup = set_up_profile(measured, loaded[0], Path(folder))
        alone = put_on_one_device(setup.plan)
        obstacles = find_obstacles(setup, (*loaded, alone))
        if len(obstacles) > len(loaded):
            # Says which batch would fit. To measure this one would run out of memory.
            check_run(setup.config, alone, describe_shape(setup))
        costs = measure_costs(setup, fits_one=Mode.SINGLE not in obstacles)
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
            obstacles[str(plan.mode)] = str(error).partition("\n")[0].rstrip(".")
    return obstacles


def count_measured_batches(shapes: int, accumulation: int) -> int:
    """Batches of one window: some of every shape, and whole updates where these are short."""
    wanted = min(MOST_BATCHES, max(FEWEST_BATCHES, 2 * shapes))
    return -(-wanted // accumulation) * accumulation if accumulation <= MOST_BATCHES else wanted


def measure_costs(setup: ProfileSetup, *, fits_one: bool = True) -> StageCosts:
    """The costs of a run that is set up with the plan of two devices, which must be in force.

    Args:
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
        single_s = prepare_s + train_s
        if fits_one:
            with closing(setup.open_batches(replace(recipe, plan=put_on_one_device(setup.plan)))) as source:
                single_s = Profiler(source, training, **lengths).time_best_window(batches)[0]
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
