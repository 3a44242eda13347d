"""`--mode auto`: from what the machine has and a short measurement to a plan. Measures in a process of its own.

    planned = plan_run(config, command)
    planned.plan, planned.choice

A run that is resumed keeps the choice that its folder has, as long as the devices are the same and it can still be had. No
TensorFlow here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.data.workers import Task
from myxtts.devices.environment import select_visible
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.plan import DevicePlan, PlanRequest
from myxtts.devices.plan_json import dump_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError
from myxtts.files import open_scratch_folder
from myxtts.monitoring.words import format_bytes
from myxtts.training.cluster_rules import find_refusal
from myxtts.training.modes.choice import ModeChoice, choose_mode, load_choice
from myxtts.training.modes.measuring_process import MeasuringError, measure_in_process
from myxtts.training.modes.prediction import WORKERS, Circumstances, Layout, StageCosts
from myxtts.training.run_folder import locate_run
from myxtts.training.run_record import read_record

_log = logging.getLogger(__name__)

REHEARSED = ("rehearsed device 0", "rehearsed device 1")
_WORKER = "myxtts.training.modes.worker:make_measurer"

Tell = Callable[[str], None]
"""Hears what is being done."""
Measure = Callable[[XTTSConfig, Sequence[DevicePlan]], Mapping[str, Any]]
"""From the plans that can be had, that of two devices first, to what `worker` answers."""


@dataclass(frozen=True)
class Obstacle:
    """Why not both devices train, each in a process of its own."""

    reason: str
    """In a few words."""
    remedy: str | None = None
    """How they can, as the end of a sentence; None where nothing but other settings or devices helps."""


FindObstacle = Callable[[], Obstacle | None]
"""Why this program starts no process for each device; None where it can."""


@dataclass(frozen=True)
class PlannedRun:
    """Which device does which job, and how that was chosen."""

    plan: DevicePlan
    """Of the one process that trains, or of the first of several."""
    choice: ModeChoice | None = None
    """None where the mode was asked for."""
    workers: tuple[int, ...] = ()
    """Physical ids of the devices that all train, a process for each; empty where one process trains."""


def explain_one_process() -> Obstacle:
    """The obstacle of a program that trains in its own process: see `FindObstacle`."""
    return Obstacle(
        "takes a process for each device: `myxtts train` starts them",
        "`myxtts train` does it with --mode auto, or with --model-gpus and the ids of both",
    )


def plan_run(
    config: XTTSConfig,
    command: Sequence[str] = (),
    *,
    machine: Machine | None = None,
    tell: Tell = lambda text: _log.info("%s", text),
    measure: Measure | None = None,
    find_launch_obstacle: FindObstacle = explain_one_process,
) -> PlannedRun:
    """The plan of a configuration on this machine; with `--mode auto` the fastest, measured unless the run has chosen before.

    Args:
        command: the words that started the program, for advice that can be pasted.
        machine: this one unless given.
        tell: hears what is being done.
        measure: a measurement of the stages; by default in a process of its own.
        find_launch_obstacle: asked only where it matters; by default this program starts no workers.
    """
    request = PlanRequest.from_config(config, command)
    machine = machine or read_machine()
    if request.mode != "auto":
        return PlannedRun(plan_devices(request, machine))
    devices = list_devices(request, machine)
    parallel = _ParallelRules(config, find_launch_obstacle)
    choice = _find_earlier_choice(config, devices, parallel, tell)
    choice = choice or _choose_without_measuring(request, machine, devices)
    if choice is None:
        choice = _choose_by_measuring(config, request, machine, devices, parallel, tell, measure or measure_modes)
    plan = plan_devices(fix_mode(request, choice.layout), machine)
    if choice.layout is not Layout.DATA_PARALLEL:
        return PlannedRun(plan, choice)
    return PlannedRun(plan, choice, _list_workers(plan_devices(fix_mode(request, Layout.DUAL), machine)))


def list_devices(request: PlanRequest, machine: Machine) -> tuple[str, ...]:
    """What there is to choose between, by names that stay the same."""
    if request.rehearsal:
        return REHEARSED
    visible = select_visible(machine.cards, machine.environ)
    if request.data_gpu is None:
        return tuple(card.uuid for card in visible)
    return tuple(card.uuid for card in visible if card.physical_id in (request.data_gpu, request.model_gpu))


def fix_mode(request: PlanRequest, layout: Layout) -> PlanRequest:
    """The request with the mode that was chosen in the place of `auto`; of workers each does everything."""
    return replace(request, mode=str(Layout.SINGLE if layout is Layout.DATA_PARALLEL else layout))


def fix_cache(config: XTTSConfig, choice: ModeChoice | None) -> XTTSConfig:
    """The configuration with the `--cache` that its mode was chosen with, where it leaves that open."""
    if choice is None or choice.cache is None or config.data.cache != "auto":
        return config
    return config.replace(data={"cache": choice.cache})


def measure_modes(config: XTTSConfig, plans: Sequence[DevicePlan]) -> Mapping[str, Any]:
    """See `Measure`."""
    # Made here: a process that is killed takes nothing away.
    with open_scratch_folder("plan") as folder:
        task = Task(_WORKER, {"config": config.given_values(), "folder": str(folder)})
        return measure_in_process(task, [dump_plan(plan) for plan in plans], "--mode auto")


@dataclass(frozen=True)
class _ParallelRules:
    """Whether both devices may train."""

    config: XTTSConfig
    find_launch_obstacle: FindObstacle

    def find_obstacle(self, crowded: str | None = None) -> Obstacle | None:
        """What stands against it. How the program was started is asked last: only that has a remedy.

        Args:
            crowded: what memory has against it, as far as that was measured.
        """
        own = self._find_own_obstacle() or crowded
        return self.find_launch_obstacle() if own is None else Obstacle(own)

    def _find_own_obstacle(self) -> str | None:
        """What the settings have against it."""
        refusal = find_refusal(self.config)
        if refusal is not None:
            return refusal.reason
        if self.config.training.deterministic:
            # What is measured differs from day to day, and the bits of two processes are not those of one.
            return "--deterministic: two processes round differently"
        if self.config.data.batch_size < WORKERS:
            return f"a batch of {self.config.data.batch_size} cannot be shared"
        return None


def _list_workers(plan: DevicePlan) -> tuple[int, ...]:
    """The devices of a plan of two, the one that is to train first: it keeps the run's folder."""
    ids = (plan.model.physical_id, plan.data.physical_id)
    return tuple(int(id) for id in ids if id is not None)


def _find_earlier_choice(
    config: XTTSConfig, devices: Sequence[str], parallel: _ParallelRules, tell: Tell
) -> ModeChoice | None:
    if config.training.resume == "reset":
        return None
    record = read_record(locate_run(config))
    if record is None or record.choice is None:
        return None
    try:
        choice = load_choice(record.choice)
    except (KeyError, TypeError, ValueError):
        # Of another version of MyXTTS. Measuring again costs a minute and loses nothing.
        return None
    if choice.devices != tuple(devices):
        tell("the devices are not those the run's mode was chosen for: it is chosen anew")
        return None
    obstacle = parallel.find_obstacle() if choice.layout is Layout.DATA_PARALLEL else None
    if obstacle is not None:
        tell(f"the run's mode was {choice.layout}, which cannot be had now ({obstacle.reason}): it is chosen anew")
        return None
    return choice


def _choose_without_measuring(request: PlanRequest, machine: Machine, devices: Sequence[str]) -> ModeChoice | None:
    """The choice where there is none to make; None where there is."""
    if request.isolation:
        return ModeChoice(Layout.ISOLATED, False, None, "--enable-memory-isolation asks for it.", tuple(devices))
    if len(devices) >= 2:
        return None
    if request.data_gpu is not None:
        # Ids that are not there: the plan of two devices says so, with the command that would work.
        plan_devices(fix_mode(request, Layout.DUAL), machine)
    reason = "There is one GPU, and it does both jobs." if devices else "There is no GPU, and the CPU does both jobs."
    return ModeChoice(Layout.SINGLE, False, None, reason, tuple(devices))


def _choose_by_measuring(
    config: XTTSConfig,
    request: PlanRequest,
    machine: Machine,
    devices: Sequence[str],
    parallel: _ParallelRules,
    tell: Tell,
    measure: Measure,
) -> ModeChoice:
    if config.training.stage == "decoder":
        raise DevicePlanError(
            "--mode auto measures the training of a codec or a GPT, but --stage is decoder. Give --mode single, dual or isolated."
        )
    plans = {Layout.DUAL: plan_devices(fix_mode(request, Layout.DUAL), machine)}
    obstacles: dict[Layout, str] = {}
    try:
        plans[Layout.ISOLATED] = plan_devices(fix_mode(request, Layout.ISOLATED), machine)
    except DevicePlanError as error:
        obstacles[Layout.ISOLATED] = str(error).partition(". ")[0]
    tell("measuring some batches to choose the mode: this takes about a minute")
    try:
        found = measure(config, list(plans.values()))
    except MeasuringError as error:
        raise MeasuringError(f"{error}\nGive --mode single, dual or isolated instead of auto.") from error
    obstacles |= {Layout(mode): reason for mode, reason in found["obstacles"].items()}
    obstacle = parallel.find_obstacle(crowded=obstacles.get(Layout.DATA_PARALLEL))
    if obstacle is not None:
        obstacles[Layout.DATA_PARALLEL] = obstacle.reason
    around = _describe_circumstances(config, found, obstacles, None if obstacle is None else obstacle.remedy)
    return choose_mode(StageCosts(**found["costs"]), around, devices)


def _describe_circumstances(
    config: XTTSConfig, found: Mapping[str, Any], obstacles: Mapping[Layout, str], parallel_remedy: str | None
) -> Circumstances:
    cache = found["cache"]
    is_possible = cache["policy"] != "off"
    is_asked_for = config.data.cache in ("memory", "disk")
    return Circumstances(
        accumulation=config.training.gradient_accumulation_steps,
        epochs=found["epochs"],
        obstacles=obstacles,
        parallel_remedy=parallel_remedy,
        kept_obstacle=None if is_possible else cache["reason"],
        online_obstacle=f"--cache is {config.data.cache}" if is_possible and is_asked_for else None,
        policy=cache["policy"],
        place=_describe_place(cache) if is_possible else "",
    )


def _describe_place(cache: Mapping[str, Any]) -> str:
    size = format_bytes(cache["size_bytes"])
    if cache["policy"] == "memory":
        return f"about {size} in the memory of each process that prepares"
    return f"about {size} on the disk, in {cache['folder']}"
