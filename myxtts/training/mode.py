"""`--mode auto`: from what the machine has and a short measurement to a plan. No TensorFlow here; it is measured in a process of its own.

A run that is resumed keeps the choice that its folder has, as long as the devices are the same and it can still be had.

What a step would take in each mode follows from what its stages were measured to cost. One device takes what was measured for
one. Two devices overlap: the slowest stage counts in full and of the others the share that this machine was measured not to hide,
which is near 0 on two cards and near 1 where both "devices" are the same cores. Codes that are kept take their time off preparing
in every epoch but the first. Two devices that both train do half the clips each, wait for the slower of them, and add up their
gradients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from signal import Signals
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from myxtts.cluster.launch import has_private_network
from myxtts.config import XTTSConfig
from myxtts.data.task_processes import ProcessTask, TaskProcess
from myxtts.devices.machine import Machine, read_machine, select_visible
from myxtts.devices.plan import DevicePlan, PlanRequest, dump_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError, MachineError, MyXTTSError
from myxtts.files import open_scratch_folder
from myxtts.processes import IMPORT_S
from myxtts.training.resume_rules import find_refusal
from myxtts.training.run_folder import locate_run, read_record
from myxtts.units import format_step_time, wrap_titled

_log = logging.getLogger(__name__)

WORKERS = 2
"""Processes that train in the data-parallel layout: one for each of the two devices there is a choice for."""
WORTHWHILE = 1.03
"""A mode with more parts must be faster than a simpler one by more than two short measurements differ by themselves."""
MEASURING_S = 1800.0
"""A minute is usual; a card newer than TensorFlow's build has all its kernels compiled at first use."""
REHEARSED = ("rehearsed device 0", "rehearsed device 1")
_MEASURER = "myxtts.tuning.mode_measuring:make_measurer"


class MeasuringError(MachineError):
    """A measurement came to no result."""


class MeasuringKilledError(MeasuringError):
    """The process of a measurement was killed, as one is that runs out of memory."""


class Layout(StrEnum):
    """Who prepares and who trains; the simplest first."""

    SINGLE = "single"
    DUAL = "dual"
    ISOLATED = "isolated"
    DATA_PARALLEL = "data-parallel"


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Seconds per batch, as measured."""

    prepare_s: float
    """Reading included, on the data device, with nothing beside it."""
    transfer_s: float
    """To the model device, inside one process."""
    train_s: float
    """With nothing beside it."""
    single_s: float
    dual_s: float
    """Two devices of one process, side by side."""
    codes_s: float = 0.0
    """Of preparing, what need not be done again once codes are kept."""
    pack_s: float = 0.0
    """Into the shared memory between two processes."""
    unpack_s: float = 0.0
    exchange_s: float = 0.0
    """Of all gradients between two devices that both train; once per update, not per batch. Estimated, not measured."""
    half_share: float = 0.5
    """Of the training time of a whole batch, what half of its clips take. Small batches do not fill a card."""
    pace: float = 1.0
    """What the device that prepares takes for the same products of matrices as the one that trains, as a multiple."""
    crowding: float = 0.0
    """Of such products on both devices at once, the share of one that the other did not hide, 0 to 1."""

    @property
    def unhidden(self) -> float:
        """Of the work beside the slowest stage, the share that the measured overlap did not hide. 0 is perfect."""
        stages_s = (self.prepare_s, self.transfer_s, self.train_s)
        beside_s = sum(stages_s) - max(stages_s)
        return max(0.0, (self.dual_s - max(stages_s)) / beside_s) if beside_s > 0 else 0.0


class Candidate(NamedTuple):
    """A way to run."""

    layout: Layout
    keeps_codes: bool = False

    def __str__(self) -> str:
        return f"{self.layout}, codes kept" if self.keeps_codes else str(self.layout)


@dataclass(frozen=True)
class Circumstances:
    """What decides about candidates besides their speed."""

    accumulation: int = 1
    epochs: int = 1
    obstacles: Mapping[Layout, str] = field(default_factory=dict)
    """Layouts that cannot be had here, and why; empty for one that can."""
    parallel_remedy: str | None = None
    """How to have both devices train, as the end of a sentence; None unless only how this program was started is against it."""
    kept_obstacle: str | None = None
    """Why codes cannot be kept, as a sentence; None where they can be."""
    online_obstacle: str | None = None
    """Why codes are kept in any case; None where that is open."""
    policy: str = "disk"
    """Where codes are kept if they are: on disk or in memory."""
    place: str = ""


class Prediction(NamedTuple):
    """What one candidate would take."""

    candidate: Candidate
    step_s: float
    obstacle: str | None = None


@dataclass(frozen=True)
class ModeChoice:
    """What was chosen, on which devices, and what was predicted: the record that a run keeps."""

    layout: Layout
    keeps_codes: bool
    step_s: float | None
    """Predicted, per update; None where there was nothing to choose from, so nothing was measured."""
    reason: str
    devices: tuple[str, ...]
    """What it was chosen for: another set of devices needs another choice."""
    codes: str = ""
    """Whether codes are kept, where and why, as the end of a sentence about them; empty where nothing was measured."""
    cache: str | None = None
    """The `--cache` that goes with it; None where that was not weighed, so that the run decides."""
    predictions: tuple[Prediction, ...] = ()
    costs: StageCosts | None = None
    is_parallel_faster: bool = False
    """Whether both devices training would be faster, and only how the program was started was against it."""


def load_choice(values: Mapping[str, Any]) -> ModeChoice:
    """The choice whose `asdict` was kept as JSON. Raises pydantic's `ValidationError` where it is none."""
    return TypeAdapter(ModeChoice).validate_python(values)


@dataclass(frozen=True)
class PlannedRun:
    """Which device does which job, and how that was chosen."""

    plan: DevicePlan
    """Of the one process that trains, or of the first of several."""
    choice: ModeChoice | None = None
    """None where the mode was asked for."""
    workers: tuple[int, ...] = ()
    """Physical ids of the devices that all train, a process for each; empty where one process trains."""


Tell = Callable[[str], None]
"""Hears what is being done."""


def plan_run(
    config: XTTSConfig,
    command: Sequence[str] = (),
    *,
    machine: Machine | None = None,
    tell: Tell = lambda text: _log.info("%s", text),
    launches: bool = False,
    opens_ports: bool = False,
) -> PlannedRun:
    """The plan of a configuration on this machine; with `--mode auto` the fastest, measured unless the run has chosen before.

    Args:
        command: the words that started the program, for advice that can be pasted.
        machine: this one unless given.
        launches: whether a process can be started for each device, as `myxtts train` does.
        opens_ports: whether these may use the machine's own network.
    """
    request, machine = PlanRequest.from_config(config, command), machine or read_machine()
    if request.mode != "auto":
        return PlannedRun(plan_devices(request, machine))
    devices = _list_devices(request, machine)
    find_obstacle = partial(_find_parallel_obstacle, config, launches, opens_ports)
    choice = _find_earlier_choice(config, devices, find_obstacle, tell)
    choice = choice or _choose_without_measuring(request, machine, devices)
    if choice is None:
        found, obstacles = _measure(config, request, machine, tell)
        obstacles[Layout.DATA_PARALLEL], remedy = find_obstacle(crowded=obstacles.get(Layout.DATA_PARALLEL, ""))
        accumulation = config.training.gradient_accumulation_steps
        around = Circumstances(accumulation, obstacles=obstacles, parallel_remedy=remedy, **found["around"])
        choice = choose_mode(StageCosts(**found["costs"]), around, devices)
    plan = plan_devices(fix_mode(request, choice.layout), machine)
    if choice.layout is not Layout.DATA_PARALLEL:
        return PlannedRun(plan, choice)
    dual = plan_devices(fix_mode(request, Layout.DUAL), machine)
    # The one that is to train first: it keeps the run's folder.
    ids = (dual.model.physical_id, dual.data.physical_id)
    return PlannedRun(plan, choice, tuple(int(id) for id in ids if id is not None))


def fix_mode(request: PlanRequest, layout: Layout) -> PlanRequest:
    """The request with the mode that was chosen in the place of `auto`; of workers each does everything."""
    return replace(request, mode=str(Layout.SINGLE if layout is Layout.DATA_PARALLEL else layout))


def fix_cache(config: XTTSConfig, choice: ModeChoice | None) -> XTTSConfig:
    """The configuration with the `--cache` that its mode was chosen with, where it leaves that open."""
    if choice is None or choice.cache is None or config.data.cache != "auto":
        return config
    return config.replace(data={"cache": choice.cache})


def _list_devices(request: PlanRequest, machine: Machine) -> tuple[str, ...]:
    """What there is to choose between, by names that stay the same."""
    if request.rehearsal:
        return REHEARSED
    named, visible = (request.data_gpu, request.model_gpu), select_visible(machine.cards, machine.environ)
    return tuple(card.uuid for card in visible if request.data_gpu is None or card.physical_id in named)


def _find_parallel_obstacle(
    config: XTTSConfig, launches: bool, opens_ports: bool, crowded: str = ""
) -> tuple[str, str | None]:
    """What keeps both devices from training, or nothing, and how they can all the same where other settings are not needed for it.

    How the program was started is asked last: only that has a remedy.

    Args:
        crowded: what memory has against it, as far as that was measured.
    """
    refusal = find_refusal(config)
    if refusal is not None:
        return refusal.reason, None
    if config.training.deterministic:
        # What is measured differs from day to day, and the bits of two processes are not those of one.
        return "--deterministic: two processes round differently", None
    if config.data.batch_size < WORKERS:
        return f"a batch of {config.data.batch_size} cannot be shared", None
    if crowded or (launches and (opens_ports or has_private_network())):
        return crowded, None
    if not launches:
        return (
            "takes a process for each device: `myxtts train` starts them",
            "`myxtts train` does it with --mode auto, or with --model-gpus and the ids of both",
        )
    return (
        "its workers can have no network of their own here (--open-ports takes the machine's)",
        "add --open-ports to `myxtts train`, and its workers take the machine's own network",
    )


def _find_earlier_choice(
    config: XTTSConfig, devices: tuple[str, ...], find_obstacle: Callable[[], tuple[str, str | None]], tell: Tell
) -> ModeChoice | None:
    record = None if config.training.resume == "reset" else read_record(locate_run(config))
    if record is None or record.choice is None:
        return None
    try:
        choice = load_choice(record.choice)
    except ValidationError:
        # Of another version of MyXTTS. Measuring again costs a minute and loses nothing.
        return None
    if choice.devices != devices:
        tell("the devices are not those the run's mode was chosen for: it is chosen anew")
        return None
    if choice.layout is Layout.DATA_PARALLEL and (obstacle := find_obstacle()[0]):
        tell(f"the run's mode was {choice.layout}, which cannot be had now ({obstacle}): it is chosen anew")
        return None
    return choice


def _choose_without_measuring(request: PlanRequest, machine: Machine, devices: tuple[str, ...]) -> ModeChoice | None:
    """The choice where there is none to make; None where there is."""
    if request.isolation:
        return ModeChoice(Layout.ISOLATED, False, None, "--enable-memory-isolation asks for it.", devices)
    if len(devices) >= 2:
        return None
    if request.data_gpu is not None:
        # Ids that are not there: the plan of two devices says so, with the command that would work.
        plan_devices(fix_mode(request, Layout.DUAL), machine)
    reason = "There is one GPU, and it does both jobs." if devices else "There is no GPU, and the CPU does both jobs."
    return ModeChoice(Layout.SINGLE, False, None, reason, devices)


def _measure(
    config: XTTSConfig, request: PlanRequest, machine: Machine, tell: Tell
) -> tuple[Mapping[str, Any], dict[Layout, str]]:
    """What was measured, and which layouts cannot be had."""
    if config.training.stage == "decoder":
        raise DevicePlanError(
            "--mode auto measures the training of a codec or a GPT, but --stage is decoder. Give --mode single, dual or isolated."
        )
    plans, obstacles = [plan_devices(fix_mode(request, Layout.DUAL), machine)], {}
    try:
        plans.append(plan_devices(fix_mode(request, Layout.ISOLATED), machine))
    except DevicePlanError as error:
        obstacles[Layout.ISOLATED] = str(error).partition(". ")[0]
    tell("measuring some batches to choose the mode: this takes about a minute")
    try:
        found = measure_modes(config, plans)
    except MeasuringError as error:
        raise MeasuringError(f"{error}\nGive --mode single, dual or isolated instead of auto.") from error
    return found, obstacles | {Layout(mode): reason for mode, reason in found["obstacles"].items()}


def measure_modes(config: XTTSConfig, plans: Sequence[DevicePlan]) -> Mapping[str, Any]:
    """From the plans that can be had, that of two devices first, to what `tuning.mode_measuring` answers."""
    # Made here: a process that is killed takes nothing away.
    with open_scratch_folder("plan") as folder:
        task = ProcessTask(_MEASURER, {"config": config.given_values(), "folder": str(folder)})
        return measure_in_process(task, [dump_plan(plan) for plan in plans], "--mode auto")


def measure_in_process(task: ProcessTask, item: Any, purpose: str) -> Mapping[str, Any]:
    """What a task measures, in a process of its own; `purpose` says for what. Raises `MeasuringError`, or the task's own error."""
    found = ask_process(task, item, MEASURING_S)
    if found.error is not None:
        raise found.error
    failed = f"Measuring for {purpose} failed: {found.ending}"
    if found.is_killed:
        raise MeasuringKilledError(f"{failed}, as one is that runs out of memory.")
    if found.content is None:
        raise MeasuringError(f"{failed}.\n{found.output}")
    return found.content


class ProcessAnswer(NamedTuple):
    """What a process made of its task, or how it ended without."""

    content: Mapping[str, Any] | None = None
    ending: str = ""
    output: str = ""
    """The end of what it wrote in that case; of one that hung with the stacks of its threads."""
    error: MyXTTSError | None = None
    is_killed: bool = False


def ask_process(task: ProcessTask, item: Any, limit_s: float, import_s: float = IMPORT_S) -> ProcessAnswer:
    """What a task makes of an item, in a process of its own that ends with the call, whatever happens in it.

    TensorFlow's devices and threads cannot be changed once they are set: such a process works once and is thrown away.

    Args:
        limit_s: how long it may work.
        import_s: how long it may load what it works with, before that.
    """
    # It has the threads that any run has.
    worker, deadline_s, has_loaded = TaskProcess(task, is_one_core=False), time.monotonic() + import_s, False
    try:
        worker.give([item])
        while not worker.is_closed:
            worker.socket.settimeout(max(0.01, deadline_s - time.monotonic()))
            for (answer,) in worker.receive():
                return ProcessAnswer(answer)
            if worker.is_ready and not has_loaded:
                deadline_s, has_loaded = time.monotonic() + limit_s, True
        code, output = worker.child.wait(), worker.child.read_output()
        if code < 0:
            return ProcessAnswer(None, f"its process was killed by {Signals(-code).name}", output, is_killed=True)
        # The last line of a traceback is the error.
        return ProcessAnswer(None, f"its process ended with exit code {code}: {output.rpartition(chr(10))[2]}", output)
    except TimeoutError:
        worker.child.write_stacks()
        hung = "it was not done" if worker.is_ready else "its process had not loaded its code"
        return ProcessAnswer(
            None, f"{hung} after {limit_s if worker.is_ready else import_s:g} s", worker.child.read_output()
        )
    except MyXTTSError as error:
        return ProcessAnswer(None, str(error), worker.child.read_output(), error)
    finally:
        worker.kill()


def predict_batch_s(costs: StageCosts, candidate: Candidate, around: Circumstances) -> float:
    """Seconds per batch of a candidate, on average over the epochs to come."""
    # In the first epoch every code has to be made. Workers read what others have put on the disk; of what lies in memory each
    # has its own, and has met every clip only after about as many epochs as there are workers.
    is_apart = candidate.layout is Layout.DATA_PARALLEL and around.policy == "memory"
    made = (WORKERS if is_apart else 1) / max(1, around.epochs) if candidate.keeps_codes else 1.0
    saved_s = max(0.0, 1 - made) * min(costs.codes_s, costs.prepare_s)
    prepare_s, single_s = costs.prepare_s - saved_s, max(costs.train_s, costs.single_s - saved_s)
    match candidate.layout:
        case Layout.SINGLE:
            return single_s
        case Layout.DUAL:
            return _overlap(costs.unhidden, prepare_s, costs.transfer_s, costs.train_s)
        case Layout.ISOLATED:
            transfer_s = costs.transfer_s + costs.unpack_s
            return _overlap(costs.unhidden, prepare_s + costs.pack_s, transfer_s, costs.train_s)
        case Layout.DATA_PARALLEL:
            half_s = (single_s - costs.train_s) / WORKERS + costs.train_s * costs.half_share
            slower_s = half_s * max(1.0, costs.pace)
            return _overlap(costs.crowding, slower_s, slower_s) + costs.exchange_s / around.accumulation


def _overlap(unhidden: float, *stages_s: float) -> float:
    slowest_s = max(stages_s)
    return slowest_s + unhidden * (sum(stages_s) - slowest_s)


def choose_mode(costs: StageCosts, around: Circumstances, devices: Sequence[str]) -> ModeChoice:
    """The simplest of the fastest candidates that can be had. Raises `DevicePlanError` where none can."""
    # The simplest first. Keeping codes is simpler than another device.
    candidates = [Candidate(layout, keeps_codes) for layout in Layout for keeps_codes in (False, True)]
    predictions = tuple(
        Prediction(
            each,
            predict_batch_s(costs, each, around) * around.accumulation,
            around.obstacles.get(each.layout) or (None if each.keeps_codes else around.online_obstacle),
        )
        for each in candidates
        if around.kept_obstacle is None or not each.keeps_codes
    )
    open_ones = [each for each in predictions if each.obstacle is None]
    if not open_ones:
        rows = {f"  {each.candidate.layout}: {each.obstacle}": None for each in predictions}
        raise DevicePlanError(
            "--mode auto needs a mode that can be had on this machine, but something is against each:\n"
            + "\n".join(rows)
            + "\nGive a smaller --batch-size with more --grad-accum, or make room on the devices."
        )
    best_s = min(each.step_s for each in open_ones)
    chosen = next(each for each in open_ones if each.step_s <= best_s * WORTHWHILE)
    layout, keeps_codes = chosen.candidate
    rivals = {each.candidate.layout: each for each in predictions if each.candidate.keeps_codes == keeps_codes}
    reason, parallel_s = _explain_choice(costs, chosen, rivals), rivals[Layout.DATA_PARALLEL].step_s
    # Only how the program was started is against it.
    is_faster = parallel_s * WORTHWHILE < chosen.step_s and around.parallel_remedy is not None
    if is_faster:
        reason += (
            f" Both devices training ({Layout.DATA_PARALLEL}) would be faster, about {format_step_time(parallel_s)} a step: "
            f"{around.parallel_remedy}."
        )
    codes = f"are not kept: {around.place} would make no step noticeably faster."
    if around.kept_obstacle is not None:
        codes = f"are not kept. {around.kept_obstacle}"
    elif keeps_codes:
        codes = f"are made in the first epoch and kept: {around.place}."
    cache = around.policy if keeps_codes else "off"
    return ModeChoice(
        layout, keeps_codes, chosen.step_s, reason, tuple(devices), codes, cache, predictions, costs, is_faster
    )


def _explain_choice(costs: StageCosts, chosen: Prediction, rivals: Mapping[Layout, Prediction]) -> str:
    """Why this layout and not a simpler or a faster-looking one."""
    single, step = rivals[Layout.SINGLE], format_step_time(chosen.step_s)
    if chosen.candidate.layout is Layout.SINGLE:
        two_s = [each.step_s for each in rivals.values() if each is not single and each.obstacle is None]
        if not two_s:
            return f"Two devices cannot be had: {rivals[Layout.DUAL].obstacle}."
        return (
            f"Preparing takes {costs.prepare_s / costs.train_s:.0%} of the time of training; a second device would not pay: "
            f"{format_step_time(min(two_s))} a step, {step} on one."
        )
    both = "Both devices prepare and train, each half the clips of every batch"
    is_parallel = chosen.candidate.layout is Layout.DATA_PARALLEL
    how = both if is_parallel else "Preparing and training overlap on two devices"
    if single.obstacle is not None:
        return f"{how}: {step} a step. One device cannot do everything: {single.obstacle}."
    return f"{how}: {step} a step instead of {format_step_time(single.step_s)} on one."


def format_choice(choice: ModeChoice) -> str:
    """The choice in a few lines: the mode, the reason, and what each mode was predicted to take."""
    taken, costs = Candidate(choice.layout, choice.keeps_codes), choice.costs
    lines = [f"Auto    {taken}", *wrap_titled("Reason", choice.reason, indent=8)]
    if costs is not None:
        stages = {"prepare": costs.prepare_s, "transfer": costs.transfer_s, "train": costs.train_s}
        measured = "per batch: " + ", ".join(f"{name} {format_step_time(each)}" for name, each in stages.items())
        if costs.exchange_s:
            exchange = format_step_time(costs.exchange_s)
            measured += f". Adding up the gradients of two devices: about {exchange} a step, estimated from their size."
        lines += wrap_titled("Costs", measured, indent=8)
    if choice.predictions:
        lines += [*wrap_titled("Codes", choice.codes, indent=8), "", f"{'mode':<28}{'predicted step':>15}"]
    for candidate, step_s, obstacle in choice.predictions:
        row = f"{candidate!s:<28}{format_step_time(step_s):>15} "
        note = "<- taken" if candidate == taken else obstacle or ""
        lines += wrap_titled(row, note, indent=len(row) + 1) or [row.rstrip()]
    return "\n".join(lines)
