"""Puts a device plan into force, and reads back what is. The only caller of `tf.config`.

A plan must be applied before TensorFlow is initialised, which any tensor, dataset or summary writer does.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.devices.machine import DEVICE_ORDER, prepare_environment
from myxtts.devices.native_stderr import drop_lines
from myxtts.devices.plan import DevicePlan, Limit, Mode, Process, ProcessPlan, RolePlan
from myxtts.errors import DevicePlanError, DevicesInUseError, PlacementError

# CUDA counts cards once. Where TensorFlow was there first, it may have counted them by speed already.
_MAY_BE_MISCOUNTED = "tensorflow" in sys.modules and os.environ.get(DEVICE_ORDER) != "PCI_BUS_ID"

# Said at every import, before any log level counts. That there is no card is the plan's to say.
_IMPORT_REMARKS = re.compile(rb".*(absl::InitializeLog|cudart_stub\.cc|port\.cc.*oneDNN)")

prepare_environment(os.environ)
with drop_lines(_IMPORT_REMARKS):
    # CUDA reads the device order when TensorFlow first looks for cards.
    import tensorflow as tf

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PoolReading:
    """TensorFlow's own pool on a device, in MiB; the CUDA context and other processes are not in it."""

    used_mib: float
    peak_mib: float


class _Active:
    """The plan in force in this process. There is at most one: TensorFlow's devices are fixed once initialised."""

    plan: DevicePlan | None = None
    process: Process | None = None


def apply_plan(plan: DevicePlan, process: Process = Process.TRAINER) -> None:
    """Makes this process see exactly the devices of its part of the plan, and says so in the log.

    Raises `DevicesInUseError` where that comes too late, and `PlacementError` where TensorFlow does not find the cards.
    """
    if _Active.plan is not None:
        if (plan, process) == (_Active.plan, _Active.process):
            return
        raise DevicesInUseError(
            f"A device plan ({_Active.plan.mode} mode) is already in force in this process, and a process has one only. "
            "Start another process for another plan."
        )
    part = plan.process(process)
    two_roles = plan.mode not in (Mode.SINGLE, Mode.REMOTE) and process is Process.TRAINER
    if two_roles:
        _log.info("Configuring %s...", plan.mode.log_name)
        _log.info("Data Processing GPU: %s", _describe_id(plan.data))
        _log.info("Model Training GPU: %s", " and ".join(map(_describe_id, plan.trainers)))
    try:
        if part.cards:
            _apply_cards(part)
        else:
            _apply_cpus(part)
    except RuntimeError as error:
        if "initialized" not in str(error):
            raise
        raise DevicesInUseError(
            "The device plan comes too late: TensorFlow is already initialised, and its devices can no longer be changed "
            f"({error}). Apply the plan, or call setup_gpu_memory_isolation, before anything makes a tensor, a dataset, "
            "a Keras optimizer or a summary writer."
        ) from error
    _Active.plan, _Active.process = plan, process
    if two_roles:
        _log.info("%s configuration completed successfully", plan.mode.log_name.removesuffix(" Mode"))
    _announce_model_device(plan, process)


def active_plan() -> DevicePlan | None:
    """The plan in force in this process, if one was applied."""
    return _Active.plan


def active_process() -> Process | None:
    """Which process of the active plan this is."""
    return _Active.process


def read_pool(device: str) -> PoolReading | None:
    """What TensorFlow itself holds on a logical device of this process; None where it does not count (CPU), and
    before it is initialised."""
    if not device.startswith("/GPU") or not _is_initialised():
        return None
    info = tf.config.experimental.get_memory_info(device.removeprefix("/"))
    return PoolReading(used_mib=info["current"] / 2**20, peak_mib=info["peak"] / 2**20)


def read_pool_bytes(device: str) -> int | None:
    """What TensorFlow itself holds now on a logical device of this process; None as in `read_pool`."""
    pool = read_pool(device)
    return None if pool is None else int(pool.used_mib * 2**20)


def set_thread_pools(intra_op: int, inter_op: int) -> None:
    """Sizes of TensorFlow's two thread pools; must come before initialisation."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(intra_op)
        tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    except RuntimeError as error:
        raise DevicesInUseError(
            f"The sizes of the thread pools come too late: TensorFlow is already initialised ({error})."
        ) from error


@dataclass(frozen=True)
class Execution:
    """What besides seed and devices decides about the bits of a result, and how operations are run."""

    intra_op: int
    """Threads inside an operation; 0 leaves the choice to TensorFlow."""
    inter_op: int
    is_deterministic: bool
    is_synchronous: bool


def read_execution() -> Execution:
    """How this process runs operations. Initialises nothing."""
    from tensorflow.python.framework import config as internal

    return Execution(
        intra_op=tf.config.threading.get_intra_op_parallelism_threads(),
        inter_op=tf.config.threading.get_inter_op_parallelism_threads(),
        # Of the four settings this one has a public setter only.
        is_deterministic=internal.is_op_determinism_enabled(),
        is_synchronous=tf.config.experimental.get_synchronous_execution(),
    )


def start_devices() -> int:
    """Initialises TensorFlow, if nothing has yet, and returns how many threads it started to work in: inside operations and
    between them, whoever asked for so many: a setting, a variable, or nobody."""
    before = _count_threads()
    list_logical_devices()
    return _count_threads() - before


def _count_threads() -> int:
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    # Those inside operations have no name of their own.
    return sum(name == "tf_Compute" or not name.startswith("tf_") for name in names)


def apply_execution(execution: Execution) -> None:
    """Makes this process run operations as another one does; must come before initialisation."""
    set_thread_pools(execution.intra_op, execution.inter_op)
    if execution.is_deterministic:
        enable_determinism()
    set_synchronous_execution(execution.is_synchronous)


def enable_determinism() -> None:
    """Makes every operation give the same bits every time, or refuse. Cannot be undone."""
    tf.config.experimental.enable_op_determinism()


def set_synchronous_execution(is_synchronous: bool) -> None:
    """Whether an eager call waits for its result. Without waiting a CPU behaves as GPUs do: errors come later."""
    tf.config.experimental.set_synchronous_execution(is_synchronous)


def is_on_cpu() -> bool:
    """Whether the device of the caller's scope is one."""
    return ":CPU:" in tf.zeros([]).device


def list_logical_devices() -> list[str]:
    """The logical devices of this process, short names. Initialises TensorFlow: what is in force is now final."""
    return [f"/{device.device_type}:{device.name.rpartition(':')[2]}" for device in tf.config.list_logical_devices()]


def require_device(device: str) -> None:
    """Raises `DevicePlanError` unless this process has the device. Initialises TensorFlow.

    TensorFlow itself places work for a device that is not there on the CPU, without a word.
    """
    present = list_logical_devices()
    try:
        spec = tf.DeviceSpec.from_string(device)
        name = f"/{spec.device_type}:{spec.device_index or 0}"
    except ValueError:
        name = device
    if name not in present:
        raise DevicePlanError(
            f"There is no device {device!r} in this process; there are {', '.join(present)}. Give one of these. Cards are "
            "counted from 0 among those this process sees: `myxtts devices` lists them."
        )


def _apply_cards(part: ProcessPlan) -> None:
    if _MAY_BE_MISCOUNTED:
        _log.warning(
            "TensorFlow was imported before MyXTTS: if it has looked for GPUs already, ids may not be those of nvidia-smi. "
            "Import MyXTTS first, or set %s=PCI_BUS_ID.", DEVICE_ORDER,
        )  # fmt: skip
    found = tf.config.list_physical_devices("GPU")
    missing = [card for card in part.cards if card.tf_index >= len(found)]
    if missing:
        names = " and ".join(f"GPU {card.physical_id}" for card in missing)
        raise PlacementError(
            f"The driver shows {names}, but TensorFlow {tf.__version__} finds {len(found)} GPU(s). Usually its CUDA libraries are "
            "missing: `pip install 'tensorflow[and-cuda]'` (on Linux or WSL2), then try again. To rehearse on the CPU: --rehearsal, or "
            "MYXTTS_REHEARSAL=1."
        )
    tf.config.set_visible_devices([found[card.tf_index] for card in part.cards], "GPU")
    _log.info("Set visible devices: %s", " and ".join(f"GPU {card.physical_id}" for card in part.cards))
    for card in part.cards:
        if isinstance(card.memory, Limit):
            set_limits, make_limit = _find_limit_api()
            set_limits(found[card.tf_index], [make_limit(memory_limit=card.memory.mib)])
            _log.info("Set memory limit for %s GPU: %d MB", card.role, card.memory.mib)
        else:
            tf.config.experimental.set_memory_growth(found[card.tf_index], True)
            _log.info("Configured memory growth for %s GPU", card.role)


def _apply_cpus(part: ProcessPlan) -> None:
    # A rehearsal on a machine with cards must not touch them.
    tf.config.set_visible_devices([], "GPU")
    if part.logical_cpus > 1:
        set_limits, make_limit = _find_limit_api()
        set_limits(tf.config.list_physical_devices("CPU")[0], [make_limit()] * part.logical_cpus)


def _is_initialised() -> bool:
    # There is no public question for it, and every public answer initialises.
    from tensorflow.python.eager import context

    return getattr(context.context(), "_context_handle", None) is not None


def _find_limit_api() -> tuple[Callable[..., None], Callable[..., Any]]:
    """TensorFlow's setter of logical devices and its argument type, under the name this version has."""
    for home, setter, kind in (
        (tf.config, "set_logical_device_configuration", "LogicalDeviceConfiguration"),
        (tf.config.experimental, "set_virtual_device_configuration", "VirtualDeviceConfiguration"),
    ):
        if hasattr(home, setter) and hasattr(home, kind):
            return getattr(home, setter), getattr(home, kind)
    raise PlacementError(
        f"TensorFlow {tf.__version__} has no way to set memory limits that MyXTTS knows. Install TensorFlow 2.18 to 2.21."
    )


def _announce_model_device(plan: DevicePlan, process: Process) -> None:
    if process is not plan.model.process:
        return
    devices = " and ".join(role.device for role in plan.trainers)
    if plan.mode in (Mode.SINGLE, Mode.REMOTE):
        _log.info("Model will be placed on %s", devices)
        return
    _log.info("%s: Model will be placed on %s", plan.mode.log_name, devices)
    for model in () if plan.rehearsal else plan.trainers:
        if plan.has_producer:
            _log.info("%s (physical GPU %s)", model.device, model.physical_id)
        else:
            _log.info("(Original GPU %s is now mapped to %s)", model.physical_id, model.device.removeprefix("/"))


def _describe_id(role: RolePlan) -> str:
    return f"{role.physical_id}" if role.is_gpu else f"{role.physical_id} (rehearsed on {role.device})"
