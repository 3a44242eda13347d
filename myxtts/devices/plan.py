"""A `DevicePlan`: which device does which job, and what was asked for it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from myxtts.config import XTTSConfig
from myxtts.devices.memory import Limit, LimitRequest, Memory
from myxtts.devices.nvml import PhysicalId


class Mode(StrEnum):
    """How the jobs are spread. Picked once, printed at start, never changed silently."""

    SINGLE = "single"
    DUAL = "dual"
    ISOLATED = "isolated"
    SPLIT = "split"

    @property
    def log_name(self) -> str:
        """As the log names it."""
        return {Mode.SINGLE: "Single-GPU Buffered Mode", Mode.SPLIT: "Split-GPU Mode"}.get(self, "Multi-GPU Mode")


class Role(StrEnum):
    """A job that needs a device: `data` prepares batches, `model` trains on them."""

    DATA = "data"
    MODEL = "model"


class Task(StrEnum):
    """What the devices are for, as notes name it."""

    TRAIN = "Training"
    SPEAK = "Speaking"
    PREPARE = "Preparing"


class Process(StrEnum):
    """A process of the run. The producer exists only in the isolated and split modes."""

    TRAINER = "trainer"
    PRODUCER = "producer"


@dataclass(frozen=True)
class VisibleCard:
    """A card that one process may see."""

    role: Role
    """What it is for; the model's where one card does both."""
    physical_id: PhysicalId
    tf_index: int
    """Its place in the list of GPUs that TensorFlow finds in that process."""
    memory: Memory


@dataclass(frozen=True)
class ProcessPlan:
    """What one process sees. All its cards have limits or all have growth: TensorFlow cannot mix them."""

    process: Process
    cards: tuple[VisibleCard, ...]
    """In the order of `tf_index`, which is the order in which TensorFlow names them /GPU:0, /GPU:1, ..."""
    logical_cpus: int = 1
    environ: tuple[tuple[str, str], ...] = ()
    """Variables to start the process with."""


@dataclass(frozen=True)
class RolePlan:
    """The device of one role."""

    role: Role
    process: Process
    device: str
    """The logical name inside that process, for example /GPU:0."""
    physical_id: PhysicalId | None
    """The card as `nvidia-smi` shows it, or the id that names the role in a rehearsal; None on a plain CPU."""
    memory: Memory | None
    """None on a plain CPU, where TensorFlow takes host memory as it needs it."""

    @property
    def limit_mib(self) -> int | None:
        """How much it may take; None where that is not limited."""
        return self.memory.mib if isinstance(self.memory, Limit) else None

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("/GPU")


@dataclass(frozen=True)
class DevicePlan:
    """Which device does which job, in which process, with how much memory."""

    mode: Mode
    rehearsal: bool
    data: RolePlan
    model: RolePlan
    processes: tuple[ProcessPlan, ...]
    notes: tuple[str, ...] = ()
    """What differs from what a reader would expect; each is worth a warning."""

    @property
    def has_producer(self) -> bool:
        """Whether a process of its own prepares."""
        return self.data.process is not self.model.process

    @property
    def is_shared(self) -> bool:
        """Whether one device of one process does both jobs."""
        return (self.data.process, self.data.device) == (self.model.process, self.model.device)

    @property
    def own_roles(self) -> tuple[RolePlan, ...]:
        """The roles that have a device of their own: the model's alone where one device does both jobs."""
        return (self.model,) if self.is_shared else (self.data, self.model)

    def process(self, process: Process) -> ProcessPlan:
        return next(plan for plan in self.processes if plan.process is process)


def put_on_one_device(plan: DevicePlan, device: RolePlan | None = None) -> DevicePlan:
    """The plan with everything on one device, for a process in which the plan of two devices is in force.

    Args:
        device: by default the one that trains.
    """
    device = device or plan.model
    return replace(
        plan,
        mode=Mode.SINGLE,
        data=replace(device, role=plan.data.role),
        model=replace(device, role=plan.model.role),
    )


@dataclass(frozen=True)
class PlanRequest:
    """The part of a configuration that decides about devices."""

    mode: str | None = None
    data_gpu: int | None = None
    model_gpu: int | None = None
    isolation: bool = False
    data_limit_mib: int | None = None
    model_limit_mib: int | None = None
    rehearsal: bool = False
    command: tuple[str, ...] = ()
    """The command as given, for advice that can be pasted; none where Python asks, which is advised by the names of settings."""
    task: Task = Task.TRAIN
    limit_names: tuple[str, str] = ("data.data_gpu_memory", "data.model_gpu_memory")
    """What the limits are called where Python asks."""

    @classmethod
    def from_config(cls, config: XTTSConfig, command: Sequence[str] = ()) -> PlanRequest:
        data = config.data
        return cls(
            mode=config.training.mode,
            data_gpu=data.data_gpu,
            model_gpu=data.model_gpu,
            isolation=data.enable_memory_isolation,
            data_limit_mib=None if data.data_gpu_memory == "auto" else data.data_gpu_memory,
            model_limit_mib=None if data.model_gpu_memory == "auto" else data.model_gpu_memory,
            rehearsal=config.training.rehearsal,
            command=tuple(command),
        )

    @property
    def limits(self) -> tuple[LimitRequest, LimitRequest]:
        data, model = ("--data-gpu-memory", "--model-gpu-memory") if self.command else self.limit_names
        return LimitRequest("data", self.data_limit_mib, data), LimitRequest("model", self.model_limit_mib, model)
