"""GPU memory by physical id: isolation in this process, readings, leaks, and limits that fit.

Ids are those of `nvidia-smi`. What the driver does not know is None, never 0. In a rehearsal the ids only name the
roles, and readings are of this process in host memory.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from dataclasses import dataclass, field

import psutil

from myxtts.config import resolve_config
from myxtts.devices import memory
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.memory import DEFAULT_DATA_MIB, DEFAULT_MODEL_MIB, DefaultMib, Limit, LimitRequest
from myxtts.devices.nvml import MIB, Card, Nvml, PhysicalId
from myxtts.devices.plan import DevicePlan, PlanRequest, RolePlan, plan_devices
from myxtts.errors import DevicePlanError, NvmlError

log = logging.getLogger(__name__)


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
        data_gpu=data_gpu_id,
        model_gpu=model_gpu_id,
        isolation=True,
        data_limit_mib=_read_asked(data_gpu_memory_limit),
        model_limit_mib=_read_asked(model_gpu_memory_limit),
        rehearsal=_is_rehearsal(),
    )
    plan = plan_devices(request, read_machine(), in_process=True)
    # Imported here: this module's other functions need no TensorFlow.
    from myxtts.devices.runtime import apply_plan

    apply_plan(plan)
    return plan


def monitor_gpu_memory(*gpu_ids: int) -> tuple[GpuMemory, ...]:
    """A reading per card, in the order asked for: `data, model = monitor_gpu_memory(0, 1)`."""
    if _is_rehearsal():
        return tuple(_read_host(gpu_id) for gpu_id in gpu_ids)
    with Nvml() as nvml:
        return tuple(_read_card(nvml, gpu_id) for gpu_id in gpu_ids)


def log_memory_stats(data_gpu_id: int, model_gpu_id: int, step: int | None = None) -> None:
    """Logs one line per role with what its card holds."""
    prefix = "" if step is None else f"[Step {step}] "
    for role, reading in zip(("Data", "Model"), monitor_gpu_memory(data_gpu_id, model_gpu_id), strict=True):
        log.info("%s%s GPU %d: %s", prefix, role, reading.gpu_id, _describe_reading(reading))


def detect_memory_leak(gpu_id: int, baseline_mb: float, threshold_mb: float = 100) -> bool:
    """Whether memory on a card keeps growing and is now more than `threshold_mb` above the baseline.

    Call it regularly, for example every few steps: a history per card is kept between calls. One jump (a new batch
    shape, a first validation) is not a leak; growth of the peak that goes on after warm-up is.
    """
    (reading,) = monitor_gpu_memory(gpu_id)
    used = reading.used_mb if reading.pool_used_mb is None else reading.pool_used_mb
    if used is None:
        log.warning("GPU %d: its memory is unknown, so a leak cannot be seen.", gpu_id)
        return False
    history = _histories.setdefault(gpu_id, PeakHistory())
    history.add(used)
    leaking = history.is_rising() and history.last_peak - baseline_mb > threshold_mb
    if leaking:
        log.warning(
            "GPU %d: memory keeps growing, from %.0f to %.0f MB over %d readings (%.0f MB above the baseline).",
            gpu_id, history.peaks[0], history.last_peak, history.readings, history.last_peak - baseline_mb,
        )  # fmt: skip
    return leaking


def get_optimal_memory_limits(
    data_gpu_id: int,
    model_gpu_id: int,
    data_fraction: float | None = 0.33,
    model_fraction: float | None = 0.67,
) -> tuple[int, int]:
    """Limits in MB for both roles, each a fraction of its own card's free memory; None = what a plan would choose."""
    machine = read_machine()
    if data_gpu_id == model_gpu_id and (data_fraction or 0) + (model_fraction or 0) > 1:
        raise DevicePlanError(
            f"data_fraction {data_fraction} and model_fraction {model_fraction} must sum to at most 1 on one shared card "
            f"(GPU {data_gpu_id}). Give smaller fractions, or two cards."
        )
    return (
        _compute_limit(machine, LimitRequest("data", None), data_gpu_id, data_fraction),
        _compute_limit(machine, LimitRequest("model", None), model_gpu_id, model_fraction),
    )


def read_role_memory(role: RolePlan) -> RoleMemory:
    """What one role of a plan holds now: TensorFlow's pool where this process runs it, else its card."""
    limit = role.memory.mib if isinstance(role.memory, Limit) else None
    used: float | None = None
    peak: float | None = None
    if role.physical_id is not None:
        (reading,) = monitor_gpu_memory(role.physical_id)
        used = reading.used_mb if reading.pool_used_mb is None else reading.pool_used_mb
        peak = reading.pool_peak_mb
    return RoleMemory(role.physical_id, role.device, limit, used, peak)


@dataclass
class PeakHistory:
    """Peaks of a quantity over equal stretches of its whole history, in bounded space.

    When the stretches run out they are merged in pairs, so that a slow leak has as much history as it needs.
    """

    warm_up: int = 8
    """Readings ignored at the start, while pools and caches fill."""
    peaks: list[float] = field(default_factory=list)
    readings: int = 0
    _stretch: int = 4
    _open: list[float] = field(default_factory=list)

    CAPACITY = 8
    RISING = 4

    def add(self, value: float) -> None:
        self.readings += 1
        if self.readings <= self.warm_up:
            return
        self._open.append(value)
        if len(self._open) == self._stretch:
            self.peaks.append(max(self._open))
            self._open.clear()
        if len(self.peaks) == self.CAPACITY:
            self.peaks = [max(pair) for pair in zip(self.peaks[::2], self.peaks[1::2], strict=True)]
            self._stretch *= 2

    def is_rising(self) -> bool:
        """Whether each of the last stretches peaked above the one before."""
        recent = self.peaks[-self.RISING :]
        return len(recent) == self.RISING and all(a < b for a, b in itertools.pairwise(recent))

    @property
    def last_peak(self) -> float:
        return self.peaks[-1]


_histories: dict[int, PeakHistory] = {}


def _read_asked(limit: int | None) -> int | None:
    if isinstance(limit, DefaultMib) or limit is None:
        return None
    if isinstance(limit, bool) or limit < 1:
        raise DevicePlanError(f"A memory limit must be a whole number of MB above 0, but is {limit}.")
    return limit


def _is_rehearsal() -> bool:
    return resolve_config(environ=os.environ).training.rehearsal


def _read_card(nvml: Nvml, gpu_id: int) -> GpuMemory:
    count = nvml.count_cards()
    if not 0 <= gpu_id < count:
        raise DevicePlanError(f"There is no GPU {gpu_id}: this machine has {count}. `nvidia-smi -L` lists the ids.")
    reading = nvml.read_memory(PhysicalId(gpu_id))
    pool_used, pool_peak = _read_pool_mib(gpu_id)
    process = nvml.read_process_mib(PhysicalId(gpu_id), os.getpid())
    return GpuMemory(gpu_id, reading.total_mib, reading.used_mib, reading.free_mib, pool_used, pool_peak, process)


def _read_pool_mib(gpu_id: int) -> tuple[float | None, float | None]:
    # Reading must not be what loads TensorFlow: without it in this process there is no pool to read.
    runtime = sys.modules.get("myxtts.devices.runtime")
    plan = runtime.active_plan() if runtime else None
    if runtime is None or plan is None:
        return None, None
    for role in (plan.model, plan.data):
        if role.physical_id == gpu_id and role.process is runtime.active_process():
            pool = runtime.read_pool(role.device)
            return (pool.used_mib, pool.peak_mib) if pool else (None, None)
    return None, None


def _read_host(gpu_id: int) -> GpuMemory:
    host = psutil.virtual_memory()
    process = psutil.Process().memory_info().rss // MIB
    return GpuMemory(gpu_id, host.total // MIB, process, host.available // MIB, None, None, process)


def _compute_limit(machine: Machine, request: LimitRequest, gpu_id: int, fraction: float | None) -> int:
    card = _find_card(machine, gpu_id)
    if fraction is None:
        return memory.choose_own_card_limit(request, card).limit.mib
    if not 0 < fraction <= 1:
        raise DevicePlanError(f"{request.role}_fraction must be above 0 and at most 1, but is {fraction}.")
    if card.free_mib is None:
        raise NvmlError(f"The free memory of GPU {gpu_id} ({card.name}) is unknown. Give its limit in MB instead.")
    return int(card.free_mib * fraction)


def _find_card(machine: Machine, gpu_id: int) -> Card:
    for card in machine.cards:
        if card.physical_id == gpu_id:
            return card
    if _is_rehearsal():
        host = psutil.virtual_memory().total // MIB
        return Card(PhysicalId(gpu_id), "host memory", "", "", host, machine.host_free_mib)
    present = ", ".join(str(card.physical_id) for card in machine.cards) or "none"
    raise DevicePlanError(f"There is no GPU {gpu_id}; present: {present}. `nvidia-smi -L` lists the ids.")


def _describe_reading(reading: GpuMemory) -> str:
    def show(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.0f}"

    text = f"{show(reading.used_mb)} of {show(reading.total_mb)} MB used"
    if reading.pool_used_mb is not None:
        text += f", TensorFlow holds {show(reading.pool_used_mb)} MB (peak {show(reading.pool_peak_mb)} MB)"
    return text
