"""`--mode auto`: from what the machine has and a short measurement to a plan. No TensorFlow here; it is measured in a process of its own.

What a step would take follows from what its stages were measured to cost: two devices overlap, so that the slowest stage counts in full
and of the others the share that this machine was seen not to hide. Where several train, each has its part of the rows, and rows and
gradients have to cross. Codes that are kept are made in the first epoch only.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from myxtts.config import XTTSConfig
from myxtts.data.task_processes import ProcessTask, TaskProcess
from myxtts.devices.machine import Machine, read_machine, select_visible
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, dump_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError, MachineError, MyXTTSError
from myxtts.files import open_scratch_folder
from myxtts.processes import IMPORT_S
from myxtts.training.run_folder import locate_run, read_record
from myxtts.units import format_step_time, wrap_titled

_log = logging.getLogger(__name__)

MODES = (Mode.SINGLE, Mode.DUAL, Mode.ISOLATED)
"""What there is to choose from; the simplest first."""
WORTHWHILE = 1.03
"""A mode with more parts must be faster than a simpler one by more than two short measurements differ by themselves."""
MEASURING_S = 1800.0
"""A minute is usual; a card newer than TensorFlow's build has all its kernels compiled at first use."""
REHEARSED: tuple[str, ...] = ("rehearsed device 0", "rehearsed device 1")
_MEASURER = "myxtts.tuning.measuring:make_measurer"


class MeasuringError(MachineError):
    """A measurement came to no result."""

    ending = ""
    """How its process ended, in a line."""


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
    half_s: float = 0.0
    """Training on half of a batch's rows, with nothing beside it; 0 where only one device can train."""
    exchange_s: float = 0.0
    """Adding up the gradients of two devices, once for an update: estimated from a sum of some of them."""

    @property
    def unhidden(self) -> float:
        """Of what is beside the slowest stage, the share that two devices were seen not to hide."""
        *beside, slowest_s = sorted((self.prepare_s, self.transfer_s, self.train_s))
        return max(0.0, self.dual_s - slowest_s) / sum(beside) if sum(beside) > 0 else 0.0

    def share(self, cards: int, accumulation: int) -> tuple[float, float]:
        """Where so many devices train: seconds per batch of training on the rows of each, and for rows and gradients to cross."""
        # What does not depend on the rows, as the update, is done by each of them in full.
        of_rows_s = 2 * min(max(0.0, self.train_s - self.half_s), self.train_s / 2)
        train_s = (self.train_s - of_rows_s * (1 - 1 / cards)) * (1 + self.unhidden * (cards - 1))
        return train_s, (1 - 1 / cards) * (self.transfer_s + 2 * self.exchange_s / accumulation)

    def predict(self, mode: Mode, kept_share: float = 0.0, cards: int = 1, accumulation: int = 1) -> float:
        """Seconds per batch in a mode, where this share of all codes need not be made and so many devices train."""
        saved_s = kept_share * min(self.codes_s, self.prepare_s)
        trained_s = sum(self.share(cards, accumulation))
        if mode is Mode.SINGLE:
            return trained_s + max(0.0, self.single_s - saved_s - self.train_s)
        packed = mode is Mode.ISOLATED
        prepare_s, transfer_s = self.prepare_s + packed * self.pack_s, self.transfer_s + packed * self.unpack_s
        *beside, slowest_s = sorted((prepare_s - saved_s, transfer_s, trained_s))
        return slowest_s + self.unhidden * sum(beside)


@dataclass(frozen=True)
class Circumstances:
    """What decides about modes besides their speed."""

    accumulation: int = 1
    epochs: int = 1
    cards: Mapping[Mode, int] = field(default_factory=dict)
    """How many devices could train in a mode, where that is more than one."""
    obstacles: Mapping[str, str] = field(default_factory=dict)
    """What cannot be had here, by `name_layout`, and why."""
    kept_obstacle: str | None = None
    """Why codes cannot be kept, as a sentence; None where they can be."""
    online_obstacle: str | None = None
    """Why codes are kept in any case; None where that is open."""
    policy: str = "disk"
    """Where codes are kept if they are: on disk or in memory."""
    place: str = ""


def name_layout(mode: Mode, cards: int) -> str:
    """A mode in which so many devices train."""
    return f"{mode}, {cards} train" if cards > 1 else str(mode)


class Prediction(NamedTuple):
    """What a step would take in a mode, with codes kept or not."""

    layout: Mode
    keeps_codes: bool
    step_s: float
    obstacle: str | None = None
    cards: int = 1
    """That train."""

    def __str__(self) -> str:
        return name_layout(self.layout, self.cards) + ", codes kept" * self.keeps_codes


@dataclass(frozen=True)
class ModeChoice:
    """What was chosen, on which devices, and what was predicted: the record that a run keeps."""

    layout: Mode
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
    cards: int = 1
    """That train."""


class PlannedRun(NamedTuple):
    """Which device does which job, and how that was chosen."""

    plan: DevicePlan
    choice: ModeChoice | None = None
    """None where the mode was asked for."""


Tell = Callable[[str], None]
"""Hears what is being done."""


def plan_run(
    config: XTTSConfig,
    command: Sequence[str] = (),
    *,
    machine: Machine | None = None,
    tell: Tell = lambda text: _log.info("%s", text),
) -> PlannedRun:
    """The plan of a configuration on this machine; with `--mode auto` the fastest, measured unless the run has chosen before, on the
    same devices."""
    request, machine = PlanRequest.from_config(config, command), machine or read_machine()
    if request.mode != "auto":
        return PlannedRun(plan_devices(request, machine))
    devices = REHEARSED
    if not request.rehearsal:
        # What there is to choose between, by names that stay the same.
        named, visible = (request.data_gpu, request.model_gpu), select_visible(machine.cards, machine.environ)
        devices = tuple(card.uuid for card in visible if request.data_gpu is None or card.physical_id in named)
    choice = _find_earlier_choice(config, devices, tell) or _choose_without_measuring(request, machine, devices)
    if choice is None:
        choice = choose_mode(*_measure(config, request, machine, tell), devices)
    return PlannedRun(_plan_layout(request, machine, choice.layout, choice.cards), choice)


def _plan_layout(request: PlanRequest, machine: Machine, mode: Mode, cards: int = 1) -> DevicePlan:
    """The plan of a mode, in the place of `auto`, in which so many devices train."""
    fixed = replace(request, mode=str(mode))
    if cards > 1:
        first, *others = _list_trainers(request, machine, mode)
        fixed = replace(fixed, model_gpu=first, other_gpus=tuple(others[: cards - 1]))
    return plan_devices(fixed, machine)


def _list_trainers(request: PlanRequest, machine: Machine, mode: Mode) -> list[int]:
    """The devices that could train together in a mode, the model's first: those like it, since it is the one that is measured."""
    pair = _plan_layout(request, machine, Mode.DUAL)
    kinds = {int(role.physical_id or 0): "" for role in (pair.model, pair.data)}
    model, data = kinds
    for card in () if request.rehearsal else select_visible(machine.cards, machine.environ):
        if request.data_gpu is None or card.physical_id in kinds:
            kinds[card.physical_id] = card.name
    alike = [each for each, kind in kinds.items() if kind == kinds[model]]
    # Of devices that are all alike one has to prepare; another kind of card can do that for all of them.
    return [each for each in alike if each != data or mode is Mode.SINGLE or len(alike) < len(kinds)]


def fix_cache(config: XTTSConfig, choice: ModeChoice | None) -> XTTSConfig:
    """The configuration with the `--cache` that its mode was chosen with, where it leaves that open."""
    if choice is None or choice.cache is None or config.data.cache != "auto":
        return config
    return config.replace(data={"cache": choice.cache})


def _find_earlier_choice(config: XTTSConfig, devices: tuple[str, ...], tell: Tell) -> ModeChoice | None:
    record = None if config.training.resume == "reset" else read_record(locate_run(config))
    if record is None or record.choice is None:
        return None
    try:
        choice = TypeAdapter(ModeChoice).validate_python(record.choice)
    except ValidationError:
        # Of another version of MyXTTS. Measuring again costs a minute and loses nothing.
        return None
    if choice.devices == devices:
        return choice
    tell("the devices are not those the run's mode was chosen for: it is chosen anew")
    return None


def _choose_without_measuring(request: PlanRequest, machine: Machine, devices: tuple[str, ...]) -> ModeChoice | None:
    """The choice where there is none to make; None where there is."""
    if request.isolation:
        return ModeChoice(Mode.ISOLATED, False, None, "--enable-memory-isolation asks for it.", devices)
    if len(devices) >= 2:
        return None
    if request.data_gpu is not None:
        # Ids that are not there: the plan of two devices says so, with the command that would work.
        _plan_layout(request, machine, Mode.DUAL)
    reason = "There is one GPU, and it does both jobs." if devices else "There is no GPU, and the CPU does both jobs."
    return ModeChoice(Mode.SINGLE, False, None, reason, devices)


def _measure(
    config: XTTSConfig, request: PlanRequest, machine: Machine, tell: Tell
) -> tuple[StageCosts, Circumstances]:
    if config.training.stage == "decoder":
        raise DevicePlanError(
            "--mode auto measures the training of a codec or a GPT, but --stage is decoder. Give --mode single, dual or isolated."
        )
    training, plans, obstacles = config.training, [_plan_layout(request, machine, Mode.DUAL)], dict[str, str]()
    counts = {mode: min(config.data.batch_size, len(_list_trainers(request, machine, mode))) for mode in MODES}
    cards = {mode: count for mode, count in counts.items() if count > 1}
    for mode, count in ((Mode.ISOLATED, 1), *cards.items()):
        try:
            if count > 1 and (training.deterministic or training.loss_mean != "tokens"):
                raise DevicePlanError("with --deterministic or loss_mean, losses may not depend on what is measured")
            plans.append(_plan_layout(request, machine, mode, count))
        except DevicePlanError as error:
            obstacles[name_layout(mode, count)] = str(error).partition(". ")[0]
    tell("measuring some batches to choose the mode: this takes about a minute")
    try:
        found = measure_modes(config, plans)
    except MeasuringError as error:
        raise MeasuringError(f"{error}\nGive --mode single, dual or isolated instead of auto.") from error
    obstacles |= found["obstacles"]
    around = Circumstances(training.gradient_accumulation_steps, cards=cards, obstacles=obstacles, **found["around"])
    return StageCosts(**found["costs"]), around


def measure_modes(config: XTTSConfig, plans: Sequence[DevicePlan]) -> Mapping[str, Any]:
    """From the plans that can be had, that of two devices first, to what `tuning.measuring` answers."""
    # Made here: a process that is killed takes nothing away.
    with open_scratch_folder("plan") as folder:
        task = ProcessTask(_MEASURER, {"config": config.given_values(), "folder": str(folder)})
        return measure_in_process(task, [dump_plan(plan) for plan in plans], "--mode auto")


def measure_in_process(task: ProcessTask, item: Any, purpose: str) -> Mapping[str, Any]:
    """What a task measures, in a process of its own; `purpose` says for what. Raises `MeasuringError`, or the task's own error."""
    found = ask_process(task, item, MEASURING_S)
    if found.error is not None:
        raise found.error
    if found.content is None:
        error = MeasuringError(f"Measuring for {purpose} failed: {found.ending}.\n{found.output}")
        error.ending = found.ending
        raise error
    return found.content


CRASHES = frozenset({Signals.SIGABRT, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE})
"""What a process dies of that does something it must not."""


class ProcessAnswer(NamedTuple):
    """What a process made of its task, or how it ended without."""

    content: Mapping[str, Any] | None = None
    ending: str = ""
    output: str = ""
    """The end of what it wrote in that case; of one that hung with the stacks of its threads."""
    error: MyXTTSError | None = None


def ask_process(task: ProcessTask, item: Any, limit_s: float, import_s: float = IMPORT_S) -> ProcessAnswer:
    """What a task makes of an item, in a process of its own that ends with the call, whatever happens in it.

    TensorFlow's devices and threads cannot be changed once they are set: such a process works once and is thrown away.
    It may load what it works with for so long (`import_s`), and then work for so long (`limit_s`)."""
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
            return ProcessAnswer(None, f"its process was killed by {_explain_signal(Signals(-code))}", output)
        # The last line of a traceback is the error.
        return ProcessAnswer(None, f"its process ended with exit code {code}: {output.rpartition(chr(10))[2]}", output)
    except TimeoutError:
        worker.child.write_stacks()
        hung = f"it was not done after {limit_s:g} s"
        if not worker.is_ready:
            hung = f"its process had not loaded its code after {import_s:g} s"
        return ProcessAnswer(None, hung, worker.child.read_output())
    except MyXTTSError as error:
        return ProcessAnswer(None, str(error), worker.child.read_output(), error)
    finally:
        worker.kill()


def _explain_signal(number: Signals) -> str:
    if number is Signals.SIGKILL:
        return f"{number.name}, which may be for want of memory: a smaller --batch-size takes less"
    if number in CRASHES:
        return f"{number.name}: a library has broken off, such as XLA, the driver's or TensorFlow's for this card (`myxtts diagnose`)"
    return number.name


def choose_mode(costs: StageCosts, around: Circumstances, devices: Sequence[str]) -> ModeChoice:
    """The simplest of the fastest modes that can be had. Raises `DevicePlanError` where none can."""
    predictions, layouts = [], [*((mode, 1) for mode in MODES), *around.cards.items()]
    # Keeping codes is simpler than another device, and that is simpler than one more that trains.
    for (mode, cards), keeps_codes in itertools.product(layouts, (False, True)[: 1 + (around.kept_obstacle is None)]):
        # In the first epoch every code has to be made.
        kept_share = 1 - 1 / max(1, around.epochs) if keeps_codes else 0.0
        obstacle = around.obstacles.get(name_layout(mode, cards)) or (None if keeps_codes else around.online_obstacle)
        step_s = costs.predict(mode, kept_share, cards, around.accumulation) * around.accumulation
        predictions.append(Prediction(mode, keeps_codes, step_s, obstacle, cards))
    open_ones = [each for each in predictions if each.obstacle is None]
    if not open_ones:
        rows = dict.fromkeys(f"  {name_layout(each.layout, each.cards)}: {each.obstacle}" for each in predictions)
        raise DevicePlanError(
            "--mode auto needs a mode that can be had on this machine, but something is against each:\n"
            + "\n".join(rows)
            + "\nGive a smaller --batch-size with more --grad-accum, or make room on the devices."
        )
    best_s = min(each.step_s for each in open_ones)
    chosen = next(each for each in open_ones if each.step_s <= best_s * WORTHWHILE)
    rivals = [each for each in predictions if each.keeps_codes == chosen.keeps_codes]
    codes = f"are not kept: {around.place} would make no step noticeably faster."
    if around.kept_obstacle is not None:
        codes = f"are not kept. {around.kept_obstacle}"
    elif chosen.keeps_codes:
        codes = f"are made in the first epoch and kept: {around.place}."
    return ModeChoice(
        layout=chosen.layout,
        keeps_codes=chosen.keeps_codes,
        step_s=chosen.step_s,
        reason=_explain_choice(costs, chosen, rivals, around.accumulation),
        devices=tuple(devices),
        codes=codes,
        cache=around.policy if chosen.keeps_codes else "off",
        predictions=tuple(predictions),
        costs=costs,
        cards=chosen.cards,
    )


def _explain_choice(costs: StageCosts, chosen: Prediction, rivals: Sequence[Prediction], accumulation: int) -> str:
    """Why this one and not a simpler or a faster-looking one."""
    alone = {each.layout: each for each in rivals if each.cards == 1}
    several = sorted(
        (each for each in rivals if each.cards > 1 and each.obstacle is None), key=lambda each: each.step_s
    )
    best = chosen if chosen.cards > 1 else next(iter(several), None)
    shared = "" if best is None else f" {_explain_sharing(costs, best, accumulation)}"
    single, step = alone[Mode.SINGLE], format_step_time(chosen.step_s)
    two_s = [each.step_s for each in alone.values() if each is not single and each.obstacle is None]
    if chosen.cards > 1:
        others = (f"{each} {format_step_time(each.step_s)}" for each in alone.values() if each.obstacle is None)
        return f"Several devices train: {step} a step; where one does: {', '.join(others)}.{shared}"
    if chosen.layout is not Mode.SINGLE:
        how = f"Preparing and training overlap on two devices: {step} a step"
        if single.obstacle is not None:
            return f"{how}. One device cannot do everything: {single.obstacle}.{shared}"
        return f"{how} instead of {format_step_time(single.step_s)} on one.{shared}"
    if not two_s:
        return f"Two devices cannot be had: {alone[Mode.DUAL].obstacle}.{shared}"
    return (
        f"Preparing takes {costs.prepare_s / costs.train_s:.0%} of the time of training; a second device for it would not pay: "
        f"{format_step_time(min(two_s))} a step, {step} on one.{shared}"
    )


def _explain_sharing(costs: StageCosts, shared: Prediction, accumulation: int) -> str:
    """What a step is made of where several devices train."""
    parts_s = [each * accumulation for each in costs.share(shared.cards, accumulation)]
    train, crossing, rest, step = map(format_step_time, (*parts_s, shared.step_s - sum(parts_s), shared.step_s))
    return (
        f"{shared.cards} that train: {train} on 1/{shared.cards} of the rows + {crossing} for rows and gradients to cross + {rest} "
        f"{'to prepare' if shared.layout is Mode.SINGLE else 'until a batch is prepared'} = {step} a step."
    )


def format_choice(choice: ModeChoice) -> str:
    """The choice in a few lines: the mode, the reason, and what each mode was predicted to take."""
    costs, taken = choice.costs, str(Prediction(choice.layout, choice.keeps_codes, 0.0, cards=choice.cards))
    lines = [f"Auto    {taken}", *wrap_titled("Reason", choice.reason, indent=8)]
    if costs is not None:
        prepare, transfer, train = map(format_step_time, (costs.prepare_s, costs.transfer_s, costs.train_s))
        half, exchange = map(format_step_time, (costs.half_s, costs.exchange_s))
        shared = f", train on half of it {half}; gradients of two, per update, about {exchange}" * (costs.half_s > 0)
        told = f"per batch: prepare {prepare}, transfer {transfer}, train {train}{shared}"
        lines += wrap_titled("Costs", told, indent=8)
        lines += [*wrap_titled("Codes", choice.codes, indent=8), "", f"{'mode':<29}{'predicted step':>14}"]
    for each in choice.predictions:
        row = f"{each!s:<29}{format_step_time(each.step_s):>14} "
        note = "<- taken" if str(each) == taken else each.obstacle or ""
        lines += wrap_titled(row, note, indent=len(row) + 1) or [row.rstrip()]
    return "\n".join(lines)
