"""`myxtts configure`: measures a machine with the user's own run, and finds settings that suit it. No TensorFlow here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from myxtts.config import XTTSConfig
from myxtts.data.workers import Task
from myxtts.devices.machine import Machine
from myxtts.devices.memory import Limit
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode, plan_devices
from myxtts.devices.plan_json import dump_plan
from myxtts.training.auto_mode import PlannedRun, plan_run
from myxtts.training.measuring_process import measure_in_process
from myxtts.training.profile_plan import refuse_decoder, request_one
from myxtts.training.tuning_candidates import (
    Candidate,
    Question,
    TuningFacts,
    choose_buffers,
    is_open,
    list_questions,
)
from myxtts.training.tuning_files import Line, list_lines, list_variables
from myxtts.training.tuning_search import (
    Answer,
    RunTrial,
    Search,
    Trial,
    TrialResult,
    Verification,
    search_settings,
    verify_settings,
)

CARD_SHARE = 0.9
"""Of a card's free memory, what a run may fill: TensorFlow's pool is not all that lies on a card."""
HOST_SHARE = 0.5
_WORKER = "myxtts.training.tuning_worker:make_trial"
MODE_KEY = "training.mode"
_MODE_KEYS = (MODE_KEY, "data.data_gpu", "data.model_gpu", "data.enable_memory_isolation")

Tell = Callable[[str], None]
Plan = Callable[[XTTSConfig], PlannedRun]


@dataclass(frozen=True)
class Tuned:
    """What a configurator has to say."""

    before: TrialResult
    """With the defaults."""
    answers: tuple[Answer, ...]
    lines: tuple[Line, ...]
    variables: tuple[Line, ...]
    verification: Verification | None

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
) -> Tuned:
    """Settings for a configuration on a machine; what was given in it stays, but `--mode auto` is answered here.

    Args:
        verifies: whether to run defaults and findings once more, in turn.
        tell: hears what is being done.
        run_trial: runs a trial; by default in a process of its own.
        plan: chooses between modes; by default by measuring, as `--mode auto` does.
    """
    refuse_decoder(config)
    config, is_auto = _forget_auto(config)
    run = run_trial or (lambda trial: run_in_process(config, machine, trial))
    tell("trying the defaults")
    before = run(Trial())
    mode = _ask_mode(config, machine, plan or (lambda asked: plan_run(asked, machine=machine, tell=tell)))
    search = search_settings(Trial(), before, [mode], run, tell)
    facts = TuningFacts(
        cores=len(os.sched_getaffinity(0)),
        is_gpu=_plan(config, machine, search.trial).model.device.startswith("/GPU"),
        read_share=search.result.read_share,
        fitting=search.result.fitting,
    )
    found = search_settings(search.trial, search.result, list_questions(config, facts), run, tell)
    answers = (*search.answers, *found.answers)
    lines = _list_settings(config, found, answers)
    if is_auto and not any(line.key == MODE_KEY for line in lines):
        asked = str(_plan(config, machine, found.trial).mode)
        lines = (Line(MODE_KEY, asked, f"{answers[0].evidence}; in the place of auto"), *lines)
    tuned = Tuned(before, answers, lines, tuple(list_variables(answers)), None)
    if not verifies:
        return tuned
    tuned = replace(tuned, verification=_verify(config, found.trial, lines, run, tell))
    return replace(tuned, lines=(), variables=()) if tuned.is_withdrawn else tuned


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
    return TrialResult(
        step_s=found["step_s"],
        read_share=found["read_share"],
        fitting=tuple((batch_size, accumulation) for batch_size, accumulation in found["fitting"]),
        in_force=found["in_force"],
    )


def find_limit_bytes(plan: DevicePlan, machine: Machine) -> int | None:
    """How much of the model device's memory a run may fill; None where that is unknown."""
    if isinstance(plan.model.memory, Limit):
        return plan.model.memory.mib * MIB
    if not plan.model.device.startswith("/GPU"):
        return int(machine.host_free_mib * HOST_SHARE) * MIB
    free = next((card.free_mib for card in machine.cards if card.physical_id == plan.model.physical_id), None)
    return None if free is None else int(free * CARD_SHARE) * MIB


def _verify(config: XTTSConfig, found: Trial, lines: Sequence[Line], run: RunTrial, tell: Tell) -> Verification:
    """The defaults against all that would be written, both as runs."""
    default = Trial(is_whole=True)
    written = replace(default, settings={line.key: line.value for line in lines}, environ=found.environ)
    if found == Trial() and _is_default(config, written):
        # The same settings twice would show the noise of the machine.
        tell("verifying: the defaults are what was found")
        only = run(default)
        return Verification((only.step_s,), only.in_force)
    return verify_settings(default, written, run, tell)


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


def _ask_mode(config: XTTSConfig, machine: Machine, choose: Plan) -> Question:
    title = "which device prepares"
    if not is_open(config, *_MODE_KEYS):
        return Question(title, (), "you have given it")
    if config.training.model_gpus is not None:
        return Question(title, (), "--model-gpus says which")
    # Measured here and now: what a run in --checkpoint-dir has chosen is not what this machine shows today.
    planned = choose(config.replace(training={"mode": "auto", "resume": "reset"}))
    assert planned.choice is not None
    if planned.plan.mode is _plan(config, machine, Trial()).mode:
        return Question(title, (), planned.choice.reason.rstrip("."))
    return Question(title, (Candidate(str(planned.plan.mode), _spell_mode(planned.plan)),))


def _spell_mode(plan: DevicePlan) -> dict[str, object]:
    """The settings that ask for a plan again."""
    settings: dict[str, object] = {MODE_KEY: str(plan.mode)}
    if not plan.rehearsal and plan.mode is not Mode.SINGLE:
        settings |= {
            "data.data_gpu": int(plan.data.physical_id or 0),
            "data.model_gpu": int(plan.model.physical_id or 0),
        }
    return settings
