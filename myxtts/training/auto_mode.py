"""`--mode auto`: from what the machine has and a short measurement to a plan. Measures in a process of its own.

    planned = plan_run(config, command)
    planned.plan, planned.choice

A run that is resumed keeps the choice that its folder has, as long as the devices are the same. No TensorFlow here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.data.workers import Task
from myxtts.devices.environment import select_visible
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.plan import DevicePlan, PlanRequest, plan_devices
from myxtts.devices.plan_json import dump_plan
from myxtts.errors import DevicePlanError
from myxtts.training.measuring_process import MeasuringError, measure_in_process
from myxtts.training.mode_choice import ModeChoice, choose_mode, load_choice
from myxtts.training.mode_prediction import Circumstances, Layout, StageCosts
from myxtts.training.run_record import read_record

_log = logging.getLogger(__name__)

REHEARSED = ("rehearsed device 0", "rehearsed device 1")
_WORKER = "myxtts.training.mode_worker:make_measurer"

Tell = Callable[[str], None]
"""Hears what is being done."""
Measure = Callable[[XTTSConfig, Sequence[DevicePlan]], Mapping[str, Any]]
"""From the plans that can be had, that of two devices first, to what `mode_worker` answers."""


@dataclass(frozen=True)
class PlannedRun:
    """Which device does which job, and how that was chosen."""

    plan: DevicePlan
    choice: ModeChoice | None = None
    """None where the mode was asked for."""


def plan_run(
    config: XTTSConfig,
    command: Sequence[str] = (),
    *,
    machine: Machine | None = None,
    tell: Tell = lambda text: _log.info("%s", text),
    measure: Measure | None = None,
) -> PlannedRun:
    """The plan of a configuration on this machine; with `--mode auto` the fastest, measured unless the run has chosen before.

    Args:
        command: the words that started the program, for advice that can be pasted.
        machine: this one unless given.
        tell: hears what is being done.
        measure: a measurement of the stages; by default in a process of its own.
    """
    request = PlanRequest.from_config(config, command) if command else PlanRequest.from_config(config)
    machine = machine or read_machine()
    if request.mode != "auto":
        return PlannedRun(plan_devices(request, machine))
    devices = list_devices(request, machine)
    choice = _find_earlier_choice(config, devices, tell) or _choose_without_measuring(request, machine, devices)
    if choice is None:
        choice = _choose_by_measuring(config, request, machine, devices, tell, measure or measure_modes)
    return PlannedRun(plan_devices(fix_mode(request, choice.layout), machine), choice)


def list_devices(request: PlanRequest, machine: Machine) -> tuple[str, ...]:
    """What there is to choose between, by names that stay the same."""
    if request.rehearsal:
        return REHEARSED
    visible = select_visible(machine.cards, machine.environ)
    if request.data_gpu is None:
        return tuple(card.uuid for card in visible)
    return tuple(card.uuid for card in visible if card.physical_id in (request.data_gpu, request.model_gpu))


def fix_mode(request: PlanRequest, layout: Layout) -> PlanRequest:
    """The request with the mode that was chosen in the place of `auto`."""
    return replace(request, mode=str(layout))


def measure_modes(config: XTTSConfig, plans: Sequence[DevicePlan]) -> Mapping[str, Any]:
    """See `Measure`."""
    task = Task(_WORKER, {"config": config.given_values()})
    return measure_in_process(task, [dump_plan(plan) for plan in plans], "--mode auto")


def _find_earlier_choice(config: XTTSConfig, devices: Sequence[str], tell: Tell) -> ModeChoice | None:
    if config.training.resume == "reset":
        return None
    record = read_record(Path(config.training.checkpoint_dir))
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
    around = _describe_circumstances(config, found, obstacles)
    return choose_mode(StageCosts(**found["costs"]), around, devices)


def _describe_circumstances(
    config: XTTSConfig, found: Mapping[str, Any], obstacles: Mapping[Layout, str]
) -> Circumstances:
    cache = found["cache"]
    is_kept = cache["policy"] != "off"
    return Circumstances(
        accumulation=config.training.gradient_accumulation_steps,
        epochs=found["epochs"],
        obstacles=obstacles,
        kept_obstacle=None if is_kept else cache["reason"],
        # Where a cache pays, the run uses it in every mode.
        online_obstacle="codes are kept" if is_kept else None,
    )
