"""GPU memory by physical id: isolation in this process, readings, leaks, and limits that fit.

Ids are those of `nvidia-smi`. What the driver does not know is None, never 0. In a rehearsal the ids only name the
roles, and readings are of this process in host memory.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import psutil

from myxtts.config import resolve_config
from myxtts.devices.leaks import PeakHistory
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.nvml import MIB, Card, Nvml, PhysicalId
from myxtts.devices.plan import (
    CONTEXT_MIB,
    DEFAULT_DATA_MIB,
    DEFAULT_MODEL_MIB,
    DefaultMib,
    DevicePlan,
    Growth,
    LimitRequest,
    PlanRequest,
    RolePlan,
    choose_own_card_limit,
    find_room_mib,
)
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError, NvmlError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one card in MB at one moment."""

    gpu_id: int
    total_mb: int | None
    used_mb: int | None
    """Everything on the card: all processes and their CUDA contexts."""
    free_mb: int | None
    pool_used_mb: float | None
    """What TensorFlow itself holds, when this process uses the card. Only here can a leak be seen: a limited pool is
    taken from the card whole at first use."""
    pool_peak_mb: float | None
    process_mb: int | None
    """What this process holds on the card, its CUDA context included."""


@dataclass(frozen=True)
class RoleMemory:
    """Memory of one role of the plan in force."""

    id: int | None
    device: str
    limit_mb: int | None
    used_mb: float | None
    peak_mb: float | None
    pool_mb: float | None = None
    """What TensorFlow itself holds; None where another process does, or where it does not count (CPU)."""
    process_mb: int | None = None
    """What this process holds on the card, as the driver sees it."""
    context_mb: int | None = None
    """Of that, what lies outside the pool: the CUDA context and the libraries' own. Known where the pool is limited, because such
    a pool is taken whole."""


def setup_gpu_memory_isolation(
    data_gpu_id: int,
    model_gpu_id: int,
    data_gpu_memory_limit: int | None = DEFAULT_DATA_MIB,
    model_gpu_memory_limit: int | None = DEFAULT_MODEL_MIB,
) -> DevicePlan:
    """The plan now in force: this process sees just these two cards, each with its memory limit in MB.

    Call it before anything uses TensorFlow. A default limit (or None) that does not fit its card is computed anew and
    reported; a given one that does not fit is an error.

    Raises:
        DevicePlanError: the cards or the limits cannot be had; the message says what can.
        DevicesInUseError: TensorFlow is already initialised.

    Example:
        plan = setup_gpu_memory_isolation(data_gpu_id=0, model_gpu_id=1, data_gpu_memory_limit=4096)
        plan.model.device    # "/GPU:1"
    """
    request = PlanRequest(
        data_gpu=_read_id("data_gpu_id", data_gpu_id),
        model_gpu=_read_id("model_gpu_id", model_gpu_id),
        isolation=True,
        data_limit_mib=_read_limit("data_gpu_memory_limit", data_gpu_memory_limit),
        model_limit_mib=_read_limit("model_gpu_memory_limit", model_gpu_memory_limit),
        rehearsal=_is_rehearsal(),
        limit_names=("data_gpu_memory_limit", "model_gpu_memory_limit"),
    )
    plan = plan_devices(request, read_machine(), in_process=True)
    for note in plan.notes:
        _log.warning("%s", note)
    # Imported here: this module's other functions need no TensorFlow.
    from myxtts.devices.runtime import apply_plan

    apply_plan(plan)
    return plan


def monitor_gpu_memory(*gpu_ids: int) -> tuple[GpuMemory, ...]:
    """A reading per card, in the order asked for: `data, model = monitor_gpu_memory(0, 1)`."""
    ids = [_read_id("gpu_id", gpu_id) for gpu_id in gpu_ids]
    if _is_rehearsal():
        return tuple(_read_host(gpu_id) for gpu_id in ids)
    with Nvml() as nvml:
        return tuple(_read_card(nvml, gpu_id) for gpu_id in ids)


def log_memory_stats(data_gpu_id: int, model_gpu_id: int, step: int | None = None) -> None:
    """Logs one line per role with what its card holds."""
    prefix = "" if step is None else f"[Step {step}] "
    for role, reading in zip(("Data", "Model"), monitor_gpu_memory(data_gpu_id, model_gpu_id), strict=True):
        _log.info("%s%s GPU %d: %s", prefix, role, reading.gpu_id, _describe_reading(reading))


def detect_memory_leak(gpu_id: int, baseline_mb: float, threshold_mb: float = 100) -> bool:
    """Whether memory on a card keeps growing and is now more than `threshold_mb` above the baseline.

    Call it regularly, for example every few steps: a history per card is kept between calls. One jump (a new batch
    shape, a first validation) is not a leak; growth of the peak that goes on after warm-up is.
    """
    (reading,) = monitor_gpu_memory(gpu_id)
    used = reading.used_mb if reading.pool_used_mb is None else reading.pool_used_mb
    if used is None:
        _log.warning("GPU %d: its memory is unknown, so a leak cannot be seen.", gpu_id)
        return False
    history = _histories.setdefault(gpu_id, PeakHistory())
    history.add(used)
    # Growth inside the window counts, not the distance from the baseline alone: noise far above the baseline rises by
    # chance now and then.
    leaking = history.measure_growth() > threshold_mb / 2 and history.last_peak - baseline_mb > threshold_mb
    if leaking:
        _log.warning(
            "GPU %d: memory keeps growing, from %.0f to %.0f MB over %d readings (%.0f MB above the baseline).",
            gpu_id, history.stretches[0].peak, history.last_peak, history.readings, history.last_peak - baseline_mb,
        )  # fmt: skip
    return leaking


def get_optimal_memory_limits(
    data_gpu_id: int,
    model_gpu_id: int,
    data_fraction: float | None = 0.33,
    model_fraction: float | None = 0.67,
) -> tuple[int, int]:
    """Limits in MB for both roles, each a fraction of its own card's free memory less what CUDA itself takes.

    None stands for what a plan would choose; on one shared card, for what the other leaves (a third and two thirds).
    """
    machine = read_machine()
    data = _find_card(machine, _read_id("data_gpu_id", data_gpu_id))
    model = _find_card(machine, _read_id("model_gpu_id", model_gpu_id))
    if data != model:
        return _compute_limit("data", data, data_fraction), _compute_limit("model", model, model_fraction)
    if (data_fraction or 0) + (model_fraction or 0) > 1:
        raise DevicePlanError(
            f"data_fraction {data_fraction} and model_fraction {model_fraction} must sum to at most 1 on one shared card "
            f"(GPU {data_gpu_id}). Give smaller fractions, or two cards."
        )
    # On one card nothing can be computed for a role alone: what it takes is not there for the other.
    if data_fraction is None:
        data_fraction = 1 / 3 if model_fraction is None else 1 - model_fraction
    model_fraction = 1 - data_fraction if model_fraction is None else model_fraction
    return _compute_limit("data", data, data_fraction, 2), _compute_limit("model", model, model_fraction, 2)


def read_role_memory(role: RolePlan) -> RoleMemory:
    """What one role of a plan holds now: TensorFlow's pool where this process runs it, else its card."""
    limit = role.limit_mib
    if role.physical_id is None:
        return RoleMemory(None, role.device, limit, None, None)
    # Not by whether this process rehearses: a plan for a rehearsal may not be in force yet.
    (reading,) = monitor_gpu_memory(role.physical_id) if role.is_gpu else (_read_host(role.physical_id),)
    pool, process = reading.pool_used_mb, reading.process_mb
    return RoleMemory(
        role.physical_id,
        role.device,
        limit,
        used_mb=reading.used_mb if pool is None else pool,
        peak_mb=reading.pool_peak_mb,
        pool_mb=pool,
        process_mb=process,
        context_mb=None if pool is None or process is None or limit is None else max(0, process - limit),
    )


def read_room_mib(role: RolePlan) -> int | None:
    """Memory that a role without a limit can have on its card; None where the driver does not say, or there is no card.

    That is what is free and what this process holds already, less its CUDA context.
    """
    if role.physical_id is None or not isinstance(role.memory, Growth):
        return None
    try:
        (reading,) = monitor_gpu_memory(role.physical_id)
    except NvmlError:
        return None
    if reading.free_mb is None or (reading.process_mb is None and reading.pool_used_mb):
        return None
    return max(0, reading.free_mb + (reading.process_mb or 0) - CONTEXT_MIB)


_histories: dict[int, PeakHistory] = {}


def _read_id(argument: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise DevicePlanError(f"{argument} must be the number of a card as `nvidia-smi -L` shows it, but is {value!r}.")


def _read_limit(argument: str, value: object) -> int | None:
    if isinstance(value, DefaultMib) or value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise DevicePlanError(
        f"{argument} must be a whole number of MB above 0, or None to have it computed, but is {value!r}."
    )


def _is_rehearsal() -> bool:
    _, plan = _find_active_plan()
    return resolve_config().training.rehearsal if plan is None else plan.rehearsal


def _find_active_plan() -> tuple[Any, DevicePlan | None]:
    # Asking must not be what loads TensorFlow: where it is not loaded there is neither a plan nor a pool.
    runtime: Any = sys.modules.get("myxtts.devices.runtime")
    return runtime, None if runtime is None else runtime.active_plan()


def _read_card(nvml: Nvml, gpu_id: int) -> GpuMemory:
    count = nvml.count_cards()
    if not 0 <= gpu_id < count:
        raise DevicePlanError(f"There is no GPU {gpu_id}: this machine has {count}. `nvidia-smi -L` lists the ids.")
    reading = nvml.read_memory(PhysicalId(gpu_id))
    process = nvml.read_process_mib(PhysicalId(gpu_id), os.getpid())
    runtime, plan = _find_active_plan()
    roles = (*plan.trainers, plan.data) if plan is not None else ()
    own = [role for role in roles if role.physical_id == gpu_id and role.process is runtime.active_process()]
    pool = runtime.read_pool(own[0].device) if own else None
    used, peak = (pool.used_mib, pool.peak_mib) if pool else (None, None)
    return GpuMemory(gpu_id, reading.total_mib, reading.used_mib, reading.free_mib, used, peak, process)


def _read_host(gpu_id: int) -> GpuMemory:
    host = psutil.virtual_memory()
    process = psutil.Process().memory_info().rss // MIB
    return GpuMemory(gpu_id, host.total // MIB, process, host.available // MIB, None, None, process)


def _compute_limit(role: str, card: Card, fraction: float | None, processes: int = 1) -> int:
    if fraction is None:
        return choose_own_card_limit(LimitRequest(role, None, f"{role}_fraction"), card)[0].mib
    if not 0 < fraction <= 1:
        raise DevicePlanError(f"{role}_fraction must be above 0 and at most 1, but is {fraction}.")
    room = find_room_mib(card, processes)
    if room is None:
        raise NvmlError(
            f"The free memory of GPU {card.physical_id} ({card.name}) is unknown. Give its limit in MB instead."
        )
    return int(room * fraction)


def _find_card(machine: Machine, gpu_id: int) -> Card:
    if _is_rehearsal():
        host = psutil.virtual_memory().total // MIB
        return Card(PhysicalId(gpu_id), "host memory", "", "", host, machine.host_free_mib)
    cards = {card.physical_id: card for card in machine.cards}
    if PhysicalId(gpu_id) in cards:
        return cards[PhysicalId(gpu_id)]
    present = ", ".join(map(str, cards)) or "none"
    raise DevicePlanError(f"There is no GPU {gpu_id}; present: {present}. `nvidia-smi -L` lists the ids.")


def _describe_reading(reading: GpuMemory) -> str:
    used, total = ("unknown" if size is None else size for size in (reading.used_mb, reading.total_mb))
    if reading.pool_used_mb is None:
        return f"{used} of {total} MB used"
    return f"{used} of {total} MB used, TensorFlow holds {reading.pool_used_mb:.0f} MB (peak {reading.pool_peak_mb:.0f} MB)"
