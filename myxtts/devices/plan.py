"""A `DevicePlan`: which device does which job, and what was asked for it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.config.presets import find_card_preset
from myxtts.config.settings import parse_gpu_ids
from myxtts.devices.nvml import Card, PhysicalId
from myxtts.errors import DevicePlanError
from myxtts.files import fit_shape


class DefaultMib(int):
    """A limit nobody asked for. Unlike a given one, it is computed anew where it does not fit."""


DEFAULT_DATA_MIB = DefaultMib(8192)
DEFAULT_MODEL_MIB = DefaultMib(16384)
CONTEXT_MIB = 512
"""Kept free on a card for every process that uses it: a limit caps TensorFlow's pool, not the CUDA context."""
OWN_CARD_SHARE = 0.85
REHEARSAL_SHARE = 0.8
REHEARSAL_LEAST_MIB = 512
"""TensorFlow alone takes about so much of a process."""
STEP_MIB = 64


@dataclass(frozen=True)
class Limit:
    """TensorFlow's pool on this device never exceeds this."""

    mib: int

    def __str__(self) -> str:
        return f"limit {self.mib} MB"


@dataclass(frozen=True)
class Growth:
    """TensorFlow takes memory as it needs it. Excludes a limit on the same device."""

    def __str__(self) -> str:
        return "memory growth"


Memory = Limit | Growth


@dataclass(frozen=True)
class LimitRequest:
    """A role's limit as asked for: a number, or None for the default."""

    role: str
    asked_mib: int | None
    flag: str
    """What it is called by whoever asks: a flag, or a setting."""

    @property
    def default_mib(self) -> int:
        return DEFAULT_DATA_MIB if self.role == "data" else DEFAULT_MODEL_MIB


def choose_own_card_limit(request: LimitRequest, card: Card) -> tuple[Limit, str | None]:
    """The limit of a role that has a card to itself, and the note to print when it is not what a reader would expect."""
    room = find_room_mib(card, processes=1)
    if room is None:
        limit = Limit(request.asked_mib or request.default_mib)
        return limit, f"GPU {card.physical_id}: free memory unknown, {limit} is not checked."
    if request.asked_mib is not None:
        if request.asked_mib > room:
            raise DevicePlanError(
                f"{request.flag} {request.asked_mib} does not fit: GPU {card.physical_id} ({card.name}) has {card.free_mib} "
                f"MB free, of which {CONTEXT_MIB} MB are kept for CUDA. Give at most {room}, or free the card "
                "(`nvidia-smi` shows who uses it)."
            )
        return Limit(request.asked_mib), None
    if request.default_mib <= room:
        return Limit(request.default_mib), None
    preset = find_card_preset(card.name, card.total_mib or 0) or (room + 1, room + 1)
    from_table = preset[0] if request.role == "data" else preset[1]
    computed = from_table if from_table <= room else _round_down(OWN_CARD_SHARE * room)
    return Limit(computed), (
        f"GPU {card.physical_id} ({card.name}) has {card.free_mib} MB free: the {request.role} limit is {computed} MB "
        f"instead of the default {request.default_mib} MB."
    )


def check_split_card(data: LimitRequest, model: LimitRequest, card: Card) -> tuple[Limit, Limit]:
    """Both limits of one shared card; they must be given and fit together."""
    if data.asked_mib is None or model.asked_mib is None:
        sums = "" if card.free_mib is None else f" (they may sum to {max(0, card.free_mib - 2 * CONTEXT_MIB)} MB now)"
        raise DevicePlanError(
            f"Both roles are to be on GPU {card.physical_id}. One card can be split between two processes only with both limits "
            f"given. Give two ids from `nvidia-smi -L`, or {data.flag} and {model.flag} that fit this card together{sums}."
        )
    room = find_room_mib(card, processes=2)
    if room is not None and data.asked_mib + model.asked_mib > room:
        raise DevicePlanError(
            f"{data.flag} {data.asked_mib} and {model.flag} {model.asked_mib} together do not fit GPU "
            f"{card.physical_id} ({card.name}): it has {card.free_mib} MB free, of which {2 * CONTEXT_MIB} MB are kept for CUDA. "
            f"Give limits that sum to at most {room}."
        )
    return Limit(data.asked_mib), Limit(model.asked_mib)


def choose_rehearsal_limits(data: LimitRequest, model: LimitRequest, host_free_mib: int) -> tuple[Limit, Limit]:
    """Limits in host memory: given ones must fit, defaults are scaled to what is free."""
    asked = (data.asked_mib or 0) + (model.asked_mib or 0)
    if asked > host_free_mib:
        raise DevicePlanError(
            f"{data.flag} and {model.flag} ask for {asked} MB, but this rehearsal has {host_free_mib} MB of host "
            "memory free. Give smaller limits, or leave them out: they are then scaled to this machine."
        )
    wanted = sum(request.default_mib for request in (data, model) if request.asked_mib is None)
    scale = min(1.0, REHEARSAL_SHARE * (host_free_mib - asked) / wanted) if wanted else 1.0
    chosen = [request.asked_mib or _round_down(request.default_mib * scale) for request in (data, model)]
    for request, mib in zip((data, model), chosen, strict=True):
        if request.asked_mib is None and mib < REHEARSAL_LEAST_MIB:
            raise DevicePlanError(
                f"This rehearsal has {host_free_mib} MB of host memory free, of which {asked} MB are asked for: too little is "
                f"left for the {request.role} role ({mib} MB). Give smaller limits, or free some memory."
            )
    return Limit(chosen[0]), Limit(chosen[1])


def find_room_mib(card: Card, processes: int) -> int | None:
    """Free memory less what CUDA takes for so many processes; None when unknown. A card without room is an error."""
    if card.free_mib is None:
        return None
    room = card.free_mib - processes * CONTEXT_MIB
    if room < STEP_MIB:
        raise DevicePlanError(
            f"GPU {card.physical_id} ({card.name}) has {card.free_mib} MB free, too little to work with. "
            "Free the card (`nvidia-smi` shows who uses it) or choose another id."
        )
    return room


def _round_down(mib: float) -> int:
    return max(STEP_MIB, int(mib) // STEP_MIB * STEP_MIB)


class Mode(StrEnum):
    """How the jobs are spread. Picked once, printed at start, never changed silently."""

    SINGLE = "single"
    DUAL = "dual"
    ISOLATED = "isolated"
    SPLIT = "split"
    REMOTE = "remote"

    @property
    def log_name(self) -> str:
        """As the log names it."""
        names = {"single": "Single-GPU Buffered Mode", "split": "Split-GPU Mode", "remote": "Cluster Mode"}
        return names.get(self, "Multi-GPU Mode")


class Role(StrEnum):
    """A job that needs a device: `data` prepares batches, `model` trains on them."""

    DATA = "data"
    MODEL = "model"


class DeviceUse(StrEnum):
    """What the devices are for, as notes name it."""

    TRAIN = "Training"
    SPEAK = "Speaking"
    PREPARE = "Preparing"


class Process(StrEnum):
    """A process of the run. The producer exists only in the isolated and split modes; in the remote one there may be many,
    elsewhere, each of which plans its device where it is."""

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
    serves_xla: bool = False
    """Whether every device that trains is a card that XLA can compile for."""
    others: tuple[RolePlan, ...] = ()
    """Further devices that train, each on rows of its own: the model is on all of them. Batches come to the model's device."""

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
        return self.trainers if self.is_shared else (self.data, *self.trainers)

    @property
    def trainers(self) -> tuple[RolePlan, ...]:
        """The devices that train, that of the model first."""
        return (self.model, *self.others)

    def process(self, process: Process) -> ProcessPlan:
        return next(plan for plan in self.processes if plan.process is process)


def choose_xla(config: XTTSConfig, plan: DevicePlan | None) -> bool:
    """Whether the training step is compiled by XLA. On a CPU that rarely gains; without fixed shapes every batch would be compiled."""
    asked = config.data.enable_xla
    if asked != "auto":
        return asked
    return plan is not None and plan.serves_xla and config.data.pad_to_fixed_length


def put_on_one_device(plan: DevicePlan) -> DevicePlan:
    """The plan with everything on the device that trains, for a process in which the plan of two devices is in force."""
    return replace(plan, mode=Mode.SINGLE, data=replace(plan.model, role=plan.data.role), others=())


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
    is_remote: bool = False
    """Whether preparers of a cluster prepare, and no device of this process."""
    command: tuple[str, ...] = ()
    """The command as given, for advice that can be pasted; none where Python asks, which is advised by the names of settings."""
    task: DeviceUse = DeviceUse.TRAIN
    wants_xla: bool = False
    """Whether XLA was asked for, whatever the card."""
    limit_names: tuple[str, str] = ("data.data_gpu_memory", "data.model_gpu_memory")
    """What the limits are called where Python asks."""
    other_gpus: tuple[int, ...] = ()
    """That train beside the model's."""

    @classmethod
    def from_config(cls, config: XTTSConfig, command: Sequence[str] = ()) -> PlanRequest:
        data, several = config.data, config.training.model_gpus
        training = [] if several is None else parse_gpu_ids(several)
        return cls(
            mode=config.training.mode,
            data_gpu=data.data_gpu,
            model_gpu=training[0] if training else data.model_gpu,
            other_gpus=tuple(training[1:]),
            isolation=data.enable_memory_isolation,
            data_limit_mib=None if data.data_gpu_memory == "auto" else data.data_gpu_memory,
            model_limit_mib=None if data.model_gpu_memory == "auto" else data.model_gpu_memory,
            rehearsal=config.training.rehearsal,
            is_remote=config.training.preparers > 0,
            command=tuple(command),
            wants_xla=data.enable_xla is True,
        )

    @property
    def limits(self) -> tuple[LimitRequest, LimitRequest]:
        data, model = ("--data-gpu-memory", "--model-gpu-memory") if self.command else self.limit_names
        return LimitRequest("data", self.data_limit_mib, data), LimitRequest("model", self.model_limit_mib, model)


def dump_plan(plan: DevicePlan) -> dict[str, Any]:
    """The whole plan; `load_plan` gives an equal one."""
    return asdict(plan)


def load_plan(values: Mapping[str, Any]) -> DevicePlan:
    """The plan that `dump_plan` was given."""
    return fit_shape(dict(values), DevicePlan)
