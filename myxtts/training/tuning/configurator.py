"""`myxtts configure`: measures a machine with the user's own run, and finds settings that suit it. No TensorFlow here."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from myxtts.config import XTTSConfig
from myxtts.data.workers import Task
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.devices.plan_json import dump_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import MyXTTSError
from myxtts.training.modes.auto_mode import FindObstacle, PlannedRun, explain_one_process, plan_run
from myxtts.training.modes.measuring_process import measure_in_process
from myxtts.training.modes.prediction import Layout
from myxtts.training.profiling.plan import refuse_decoder, request_one
from myxtts.training.tuning.candidates import (
    BATCH_TITLE,
    Candidate,
    Question,
    TuningFacts,
    choose_buffers,
    is_open,
    list_questions,
)
from myxtts.training.tuning.files import Line, list_lines, list_variables
from myxtts.training.tuning.search import (
    VERIFY_ROUNDS,
    Answer,
    RunTrial,
    Search,
    Trial,
    TrialResult,
    Verification,
    cut_reason,
    search_settings,
    verify_settings,
)
from myxtts.training.tuning.start import find_start

CARD_SHARE = 0.9
"""Of a card's free memory, what a run may fill: TensorFlow's pool is not all that lies on a card."""
HOST_SHARE = 0.5
_WORKER = "myxtts.training.tuning.worker:make_trial"
MODE_KEY = "training.mode"
_MODE_KEYS = (MODE_KEY, "data.data_gpu", "data.model_gpu", "data.enable_memory_isolation")

Tell = Callable[[str], None]
Plan = Callable[[XTTSConfig], PlannedRun]


@dataclass(frozen=True)
class Tuned:
    """What a configurator has to say."""

    before: TrialResult
    """With the defaults, or with the batch that fits where they do not."""
    answers: tuple[Answer, ...]
    lines: tuple[Line, ...]
    variables: tuple[Line, ...]
    verification: Verification | None
    """None where the defaults are what was found, and no more was asked about them."""
    refusal: str = ""
    """Why there is no memory for the defaults; empty where there is."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether what was found turned out to gain nothing, so that the defaults stay."""
        checked = self.verification
        return checked is not None and not checked.is_unchanged and not checked.is_kept


def tune(
    config: XTTSConfig,
    machine: Machine,
    *,
    verifies: bool,
    tell: Tell,
    run_trial: RunTrial | None = None,
    plan: Plan | None = None,
    find_launch_obstacle: FindObstacle = explain_one_process,
) -> Tuned:
    """Settings for a configuration on a machine; what was given in it stays, but `--mode auto` is answered here.

    In the end what was found is run against the defaults, in turn, and withdrawn where it is not faster.

    Args:
        verifies: whether to do that three times instead of once, and to show what is in force also where nothing was found.
        tell: hears what is being done.
        run_trial: runs a trial; by default in a process of its own.
        plan: chooses between modes; by default by measuring, as `--mode auto` does.
        find_launch_obstacle: what keeps a training from starting workers, for that measurement.
    """
    refuse_decoder(config)
    config, is_auto = _forget_auto(config)
    run = run_trial or (lambda trial: run_in_process(config, machine, trial))
    choose = plan or (
        lambda asked: plan_run(asked, machine=machine, tell=tell, find_launch_obstacle=find_launch_obstacle)
    )
    start, before = find_start(config, run, tell)
    mode, stays_auto = _ask_mode(start.trial.apply(config), machine, choose, is_auto=is_auto)
    search = search_settings(start.trial, start.result, [mode], run, tell)
    facts = TuningFacts(
        cores=len(os.sched_getaffinity(0)),
        is_gpu=_plan(config, machine, search.trial).model.is_gpu,
        read_share=search.result.read_share,
        fitting=search.result.fitting,
    )
    # A batch that was needed to begin at all is not asked for again.
    questions = [each for each in list_questions(config, facts) if not start.answers or each.title != BATCH_TITLE]
    found = search_settings(search.trial, search.result, questions, run, tell)
    answers = (*start.answers, *search.answers, *found.answers)
    lines = _list_settings(config, found, answers)
    if is_auto and not stays_auto and not any(line.key == MODE_KEY for line in lines):
        asked = str(_plan(config, machine, found.trial).mode)
        lines = (Line(MODE_KEY, asked, f"{search.answers[0].evidence}; in the place of auto"), *lines)
    verification = _verify(config, start.trial, found.trial, lines, run, tell, verifies=verifies)
    variables = tuple(list_variables(answers))
    tuned = Tuned(start.result, answers, lines, variables, verification, refusal=before.refusal)
    return replace(tuned, lines=tuple(list_lines(start.answers, [])), variables=()) if tuned.is_withdrawn else tuned


def run_in_process(config: XTTSConfig, machine: Machine, trial: Trial) -> TrialResult:
    """What a trial shows, in a process that has the variables and devices of it."""
    plan = _plan(config, machine, trial)
    task = Task(
        _WORKER,
        {
            "config": trial.apply(config).given_values(),
            "environ": dict(trial.environ),
            "limit_bytes": find_limit_bytes(plan, machine),
            "is_whole": trial.is_whole,
        },
    )
    found = measure_in_process(task, dump_plan(plan), "the configurator")
    fitting = tuple((batch_size, accumulation) for batch_size, accumulation in found["fitting"])
    if "refusal" in found:
        return TrialResult(math.inf, 0.0, fitting, refusal=found["refusal"])
    return TrialResult(found["step_s"], found["read_share"], fitting, found["in_force"])


def find_limit_bytes(plan: DevicePlan, machine: Machine) -> int | None:
    """How much of the model device's memory a run may fill; None where that is unknown."""
    if plan.model.limit_mib is not None:
        return plan.model.limit_mib * MIB
    if not plan.model.is_gpu:
        return int(machine.host_free_mib * HOST_SHARE) * MIB
    free = next((card.free_mib for card in machine.cards if card.physical_id == plan.model.physical_id), None)
    return None if free is None else int(free * CARD_SHARE) * MIB


def _verify(
    config: XTTSConfig,
    start: Trial,
    found: Trial,
    lines: Sequence[Line],
    run: RunTrial,
    tell: Tell,
    *,
    verifies: bool,
) -> Verification | None:
    """What it began with against all that would be written, both as runs."""
    default = replace(start, is_whole=True)
    written = replace(default, settings={line.key: line.value for line in lines}, environ=found.environ)
    if found != start or not _is_default(start.apply(config), written):
        return verify_settings(default, written, run, tell, VERIFY_ROUNDS if verifies else 1)
    if not verifies:
        return None
    # The same settings twice would show the noise of the machine.
    tell("verifying: the defaults are what was found")
    try:
        only = run(default)
    except MyXTTSError as error:
        return Verification((), {}, failure=f"the defaults failed ({cut_reason(str(error))})")
    return Verification((only.step_s,), only.in_force)


def _is_default(config: XTTSConfig, written: Trial) -> bool:
    """Whether the buffers that go by rule are those one has without them."""
    now, then = config.data, written.apply(config).data
    return (now.pipeline_buffer_size, now.prefetch_depth) == (then.pipeline_buffer_size, then.prefetch_depth)


def _list_settings(config: XTTSConfig, found: Search, answers: tuple[Answer, ...]) -> tuple[Line, ...]:
    buffers = choose_buffers(found.trial.apply(config), found.result.read_share)
    return tuple(list_lines(answers, buffers))


def _forget_auto(config: XTTSConfig) -> tuple[XTTSConfig, bool]:
    """The configuration without `--mode auto`, and whether it had that: which mode is one of the questions here."""
    if config.training.mode != "auto":
        return config, False
    given = config.given_values()
    del given["training"]["mode"]
    return XTTSConfig(**given), True


def _plan(config: XTTSConfig, machine: Machine, trial: Trial) -> DevicePlan:
    return plan_devices(request_one(trial.apply(config)), machine)


def _ask_mode(config: XTTSConfig, machine: Machine, choose: Plan, *, is_auto: bool) -> tuple[Question, bool]:
    """Which mode, and whether a `--mode auto` that was given stays: what two processes do cannot be tried here."""
    title = "which device prepares"
    if not is_open(config, *_MODE_KEYS):
        return Question(title, (), "you have given it"), False
    if config.training.model_gpus is not None:
        return Question(title, (), "--model-gpus says which"), False
    try:
        # Measured here and now: what a run in --checkpoint-dir has chosen is not what this machine shows today.
        planned = choose(config.replace(training={"mode": "auto", "resume": "reset"}))
    except MyXTTSError as error:
        return Question(title, (), f"it could not be measured ({str(error).splitlines()[0]})"), True
    assert planned.choice is not None
    reason = planned.choice.reason.rstrip(".")
    if is_auto and (planned.workers or planned.choice.is_parallel_faster):
        return Question(title, (), f"--mode auto stays, and is to choose when the run starts. {reason}"), True
    if planned.workers:
        return Question(title, (), f"{reason}. --mode auto trains so ({Layout.DATA_PARALLEL})"), False
    if planned.plan.mode is _plan(config, machine, Trial()).mode:
        return Question(title, (), reason), False
    return Question(title, (Candidate(str(planned.plan.mode), _spell_mode(planned.plan)),), reason=reason), False


def _spell_mode(plan: DevicePlan) -> dict[str, object]:
    """The settings that ask for a plan again."""
    settings: dict[str, object] = {MODE_KEY: str(plan.mode)}
    if not plan.rehearsal and plan.mode is not Mode.SINGLE:
        settings |= {
            "data.data_gpu": int(plan.data.physical_id or 0),
            "data.model_gpu": int(plan.model.physical_id or 0),
        }
    return settings
