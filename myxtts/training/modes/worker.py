"""The process that measures for `--mode auto`: it has both devices, answers once, and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.data.workers import Work
from myxtts.devices.plan import put_on_one_device
from myxtts.devices.plan_json import load_plan
from myxtts.devices.runtime import read_execution
from myxtts.pipeline.code_cache import Decision, choose_cache_folder, count_code_bytes, decide_cache, make_code_key
from myxtts.pipeline.codec_loading import load_codec
from myxtts.training.cluster_rules import find_refusal
from myxtts.training.devices_in_force import apply_devices
from myxtts.training.lengths import count_updates
from myxtts.training.modes.measuring import (
    READ_AHEAD,
    find_memory_obstacles,
    find_workers_obstacle,
    measure_costs,
    refuse_without_room,
)
from myxtts.training.modes.parallel_measuring import measure_pair
from myxtts.training.modes.prediction import Layout
from myxtts.training.profiling.setup import ProfileSetup, set_up_profile
from myxtts.utils.commons import get_device_context


def make_measurer(config: Mapping[str, Any], folder: str) -> Work:
    """The work of the process: from the plans of all modes that can be had, that of two devices first, to the answer.

    Args:
        config: as given.
        folder: for what is written meanwhile.
    """
    asked = XTTSConfig(**config)

    def measure(plans: list[Mapping[str, Any]]) -> dict[str, Any]:
        loaded = [load_plan(plan) for plan in plans]
        # What is kept from epoch to epoch would hide what preparing costs.
        measured = asked.replace(data={"cache": "off", "pipeline_buffer_size": READ_AHEAD})
        apply_devices(measured, loaded[0])
        setup = set_up_profile(measured, loaded[0], Path(folder))
        modes = [*loaded, put_on_one_device(setup.plan)]
        obstacles = find_memory_obstacles(setup, modes)
        crowded = find_workers_obstacle(setup)
        if crowded is not None:
            obstacles[str(Layout.DATA_PARALLEL)] = crowded
        may_share = crowded is None and find_refusal(asked) is None
        if not may_share:
            refuse_without_room(setup, modes, obstacles)
        fits_one = str(Layout.SINGLE) not in obstacles
        costs = measure_costs(setup, measure_pair if may_share else None, fits_one=fits_one)
        sampler = setup.data.sampler
        epochs = -(-count_updates(asked, sampler, asked.training.stage) // sampler.steps_per_epoch)
        cache = _decide_cache(asked, setup, epochs)
        return {
            "costs": asdict(costs),
            "epochs": epochs,
            "obstacles": obstacles,
            "cache": {
                "policy": cache.policy,
                "reason": cache.reason,
                "size_bytes": count_code_bytes(setup.data),
                "folder": str(choose_cache_folder(setup.data, Path(asked.training.checkpoint_dir))),
            },
        }

    return measure


def _decide_cache(asked: XTTSConfig, setup: ProfileSetup, epochs: int) -> Decision:
    """What the run's own `--cache` will come to."""
    request = setup.request_source()
    if request.production.codec_folder is None:
        return Decision("off", "A codec that is trained has none.")
    assert setup.codec is not None
    with get_device_context("/CPU:0"):
        weights = load_codec(request.production.codec_folder).weights
    key = make_code_key(weights, setup.codec.mel_norms, request.plan.data.device, read_execution())
    folder = choose_cache_folder(setup.data, setup.folder)
    return decide_cache(asked.data.cache, request.production.preparation, setup.data, folder, key, epochs=epochs)
