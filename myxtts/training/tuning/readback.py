"""What was in force in a trial of the configurator, read back in the process that ran it, as rows for people."""

from __future__ import annotations

import os

import psutil

from myxtts.config import DataConfig, XTTSConfig
from myxtts.data import workers
from myxtts.data.open_engine import Engine, choose_engine, choose_read_ahead
from myxtts.devices.plan import DevicePlan, Mode, RolePlan
from myxtts.devices.runtime import PoolSizes, list_logical_devices
from myxtts.errors import NvmlError
from myxtts.monitoring.words import UNKNOWN
from myxtts.pipeline.batch_source import BatchSource
from myxtts.pipeline.handoff import SLOTS
from myxtts.pipeline.preparation_settings import reads_prompts
from myxtts.training.profiling.setup import ProfileSetup
from myxtts.training.step import TrainStep
from myxtts.training.tuning.candidates import VARIABLES
from myxtts.utils.gpu_memory import read_role_memory


def read_devices(plan: DevicePlan, pools: PoolSizes) -> dict[str, str]:
    """Mode, devices, their memory, and threads with the variables that set them."""
    return {
        "mode": str(plan.mode),
        "devices": ", ".join(list_logical_devices()),
        **{f"memory of {role.role} device": _describe_memory(role) for role in (plan.data, plan.model)},
        **_describe_pools(pools),
        **{name: os.environ.get(name, "not set") for name in VARIABLES},
    }


def _describe_pools(pools: PoolSizes) -> dict[str, str]:
    if pools.intra_op is None:
        return {"threads inside and between operations": str(pools.both)}
    return {"threads inside operations": str(pools.intra_op), "threads between operations": str(pools.inter_op)}


def read_step(step: TrainStep, config: XTTSConfig) -> dict[str, str]:
    """What the training step computes with."""
    weight = next(iter(step.optimizer.variables.values())).value
    return {
        "compute precision": str(step.objective.model.compute_dtype),
        "functions compiled by XLA": f"{step.xla_functions} of {step.count_traces()}",
        "weights on": f"/{weight.device.rpartition('/device:')[2]}",
        "batch x accumulation": f"{config.data.batch_size} x {config.training.gradient_accumulation_steps}",
    }


def read_pipeline(setup: ProfileSetup, source: BatchSource) -> dict[str, str]:
    """Readers, buffers and kept codes of a source that is open."""
    data = setup.config.data
    corpora = [setup.data.train, setup.data.validation][: 2 if len(setup.data.validation) else 1]
    engine = choose_engine(data, corpora).engine
    meters = source.read_facts().meters
    clips = meters.cache_hits + meters.cache_misses
    return {
        "readers": _describe_readers(engine),
        "batches read ahead": "none" if engine is Engine.HERE else str(_count_read_ahead(setup)),
        "batches prepared ahead": _describe_prefetch(setup.plan.mode, data),
        "codes found": f"of {meters.cache_hits} of {clips} clips" if clips else "none: no codes are kept",
    }


def _describe_readers(engine: Engine) -> str:
    count = _count_readers()
    if count:
        return f"{count} process{'es' if count > 1 else ''}"
    return f"no process of their own: {engine} reads"


def _count_readers() -> int:
    """Processes that read for this one, or for its producer, at this moment."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        try:
            found += workers.__name__ in child.cmdline()
        except psutil.NoSuchProcess:
            # It ended since it was listed.
            continue
    return found


def _count_read_ahead(setup: ProfileSetup) -> int:
    preparation = setup.request_source().production.preparation
    return choose_read_ahead(
        setup.config.data,
        [setup.data.sampler.plan],
        accumulation=setup.data.sampler.accumulation,
        clips_per_row=2 if reads_prompts(setup.config.data, preparation.target) else 1,
    ).depth


def _describe_prefetch(mode: Mode, data: DataConfig) -> str:
    if mode is Mode.DUAL:
        return f"{data.prefetch_depth}, on {'the data device' if data.prefetch_to_gpu else 'the host'}"
    # Fixed by how these modes hand batches over; no setting changes it.
    return "1, on the model device" if mode is Mode.SINGLE else f"{SLOTS}, in shared host memory"


def _describe_memory(role: RolePlan) -> str:
    if role.memory is None:
        return "of the host, as needed"
    try:
        peak_mb = read_role_memory(role).peak_mb
    except NvmlError:
        peak_mb = None
    return f"{role.memory}, peak {UNKNOWN if peak_mb is None else f'{peak_mb:.0f} MB'}"
