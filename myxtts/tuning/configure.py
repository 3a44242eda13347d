"""`myxtts configure`: measures a machine with the user's own run, and finds settings that suit it. No TensorFlow here.

One question after another is answered by what is fastest, on top of the answers before it. A candidate is taken only where it is
faster by more than two short measurements differ by themselves. In the end all of it is compared with the defaults.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from myxtts.config import XTTSConfig
from myxtts.config.config import SECTIONS
from myxtts.config.sources import format_value
from myxtts.data.task_processes import ProcessTask, Work
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode, dump_plan, load_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import MemoryBillError, MyXTTSError
from myxtts.training.mode import MeasuringError, PlannedRun, Tell, measure_in_process, plan_run
from myxtts.tuning.profile import request_one
from myxtts.units import format_step_time

INTRA_OP, INTER_OP = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
GPU_THREAD_MODE, GPU_THREAD_COUNT = "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"
VARIABLES = (INTRA_OP, INTER_OP, GPU_THREAD_MODE, GPU_THREAD_COUNT)
NOISE = 0.03
"""Share of a step by which two measurements of the same settings may differ."""
MOST_READ_SHARE = 0.02
"""Of a step, that may go into waiting for clips before something is tried against it."""
DEEP_BUFFER = 100
"""Batches that may be read ahead where reading is uneven."""
CARD_SHARE = 0.9
"""Of a card's free memory, what a run may fill: TensorFlow's pool is not all that lies on a card."""
HOST_SHARE = 0.5
_ROUNDS = 3
_WORKER = f"{__name__}:make_trial"
_MODE = "training.mode"
_BATCH = "batch x accumulation"
_GIVEN = "you have given it"


@dataclass(frozen=True)
class Trial:
    """Settings to run with, by dotted key, and variables, beside those of the user."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """With the read-ahead and the kept codes that a run would have; the search does without, to see what a setting does."""
    name: str = ""

    def add(self, other: Trial) -> Trial:
        return replace(self, settings={**self.settings, **other.settings}, environ={**self.environ, **other.environ})

    def apply(self, config: XTTSConfig) -> XTTSConfig:
        """The configuration with these settings given on top."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        return config.replace(**sections)


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed."""

    step_s: float = math.inf
    """Per update; infinite where there is none."""
    read_share: float = 0.0
    """Of a step, that went into waiting for clips."""
    fitting: Sequence[tuple[int, int]] = ()
    """Batches x accumulation that fit into memory; none where that is unknown."""
    in_force: Mapping[str, str] = field(default_factory=dict)
    """Read back from TensorFlow in the process of the trial."""
    refusal: str = ""
    """Why there is no memory for a run with these settings; empty where there is, as far as that is known."""
    failure: str = ""

    def describe(self) -> str:
        if self.failure:
            return f"failed ({self.failure})"
        return "does not fit into memory" if self.refusal else format_step_time(self.step_s)


RunTrial = Callable[[XTTSConfig, Machine, Trial], TrialResult]


class Question(NamedTuple):
    """One thing to choose, by the trials of its candidates."""

    title: str
    candidates: Sequence[Trial] = ()
    skipped: str = ""
    reason: str = ""
    """What speaks for the candidates, before they are tried."""


class Answer(NamedTuple):
    """What a question came to."""

    title: str
    evidence: str
    taken: Trial | None = None


class Line(NamedTuple):
    """A setting or a variable, and why it is what it is."""

    key: str
    value: Any
    evidence: str


@dataclass(frozen=True)
class Comparison:
    """The settings found, against those one would have without them, in turn; a result for each round."""

    defaults: Sequence[TrialResult]
    tuned: Sequence[TrialResult] = ()
    """Nothing where the defaults are what was found: there is nothing to compare."""
    failure: str = ""
    keeps_batch: bool = False
    """Whether a batch was needed to fit, which stays where all else is withdrawn."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether what was found turned out to gain nothing, so that the defaults stay."""
        return bool(self.failure or self.tuned) and self.gain <= 0

    @property
    def medians_s(self) -> list[float]:
        """Of a step, with the defaults and with what was found; only of those that were run."""
        return [statistics.median(each.step_s for each in runs) for runs in (self.defaults, self.tuned) if runs]

    @property
    def gain(self) -> float:
        """How much faster a step is, as a share of the default's; negative where it is slower."""
        if self.failure or not self.tuned:
            return 0.0
        default_s, tuned_s = self.medians_s
        return 1 - tuned_s / default_s

    @property
    def in_force(self) -> Mapping[str, str]:
        """With the settings that stay."""
        return (self.tuned if self.gain > 0 else self.defaults)[-1].in_force

    @property
    def verdict(self) -> str:
        """What came of it."""
        if self.gain > 0:
            return f"{self.gain:.1%} faster than the defaults; differences below 3 % are within the noise."
        if not self.is_withdrawn:
            return "Nothing faster than the defaults was found, so they stay."
        what = f"no gain{f', {-self.gain:.1%} slower' if self.gain < 0 else ''}: defaults kept."
        if self.failure:
            what = f"It was broken off, so that nothing is known about a gain: {self.failure}."
        return f"{what} What was found is withdrawn; the file changes nothing{' but the batch' if self.keeps_batch else ''}."


class Tuned(NamedTuple):
    """What a configurator has to say."""

    before: TrialResult
    answers: Sequence[Answer]
    lines: Sequence[Line]
    variables: Sequence[Line]
    comparison: Comparison
    refusal: str = ""


@dataclass
class Search:
    """The settings that were found so far, and why."""

    config: XTTSConfig
    machine: Machine
    tell: Tell
    run: RunTrial
    result: TrialResult
    trial: Trial = field(default_factory=Trial)
    answers: list[Answer] = field(default_factory=list)

    def ask(self, question: Question) -> None:
        """Answers a question by trying."""
        if question.skipped:
            self.answers.append(Answer(question.title, f"not tried: {question.skipped}"))
            return
        best, fastest, seen = TrialResult(), None, []
        for candidate in question.candidates:
            self.tell(f"trying {question.title}: {candidate.name}")
            result = self.attempt(self.trial.add(candidate))
            seen.append(f"{candidate.name} {result.describe()}")
            if result.step_s < best.step_s:
                best, fastest = result, candidate
        predicted = f"predicted: {question.reason}; " if question.reason else ""
        unit = "" if fastest is None else " a step"
        evidence = f"{predicted}measured: {', '.join(seen)}{unit}; before {self.result.describe()}"
        # What does not fit takes for ever: whatever fits is faster.
        taken = fastest if best.step_s < self.result.step_s * (1 - NOISE) else None
        if taken is not None:
            self.result, self.trial = best, self.trial.add(taken)
        self.answers.append(Answer(question.title, evidence, taken))

    def attempt(self, trial: Trial) -> TrialResult:
        """What a trial shows; one that fails loses nothing else."""
        try:
            return self.run(self.config, self.machine, trial)
        except MyXTTSError as error:
            # The last line of an error, short enough for a table: of a process that died it is what that wrote last.
            last = str(error).strip().rpartition("\n")[2]
            line = textwrap.shorten(last, 80, placeholder=" ...") or "no reason given"
            ending = error.ending if isinstance(error, MeasuringError) else ""
            if ending:
                line = ending if last in ending else f"{ending}; it wrote last: {line}"
            return TrialResult(failure=line)


def run_in_process(config: XTTSConfig, machine: Machine, trial: Trial) -> TrialResult:
    """What a trial shows, in a process that has the variables and devices of it."""
    plan, given = _plan(config, machine, trial), trial.apply(config).given_values()
    settings = {"environ": dict(trial.environ), "is_whole": trial.is_whole}
    task = ProcessTask(_WORKER, {"config": given, **settings, "limit_bytes": find_limit_bytes(plan, machine)})
    found = measure_in_process(task, dump_plan(plan), "the configurator")
    return TypeAdapter(TrialResult).validate_python(found)


def tune(
    config: XTTSConfig,
    machine: Machine,
    *,
    verifies: bool,
    tell: Tell,
    run: RunTrial = run_in_process,
    plan: Callable[..., PlannedRun] = plan_run,
) -> Tuned:
    """Settings for a configuration on a machine; what was given in it stays, but `--mode auto` is answered here.

    In the end what was found is run against the defaults, in turn, and withdrawn where it is not faster. Verifying does that three
    times instead of once. `run` and `plan` say how a trial is run, and a mode chosen."""
    is_auto = config.training.mode == "auto"
    if is_auto:
        # Which mode is one of the questions here.
        given = config.given_values()
        del given["training"]["mode"]
        config = XTTSConfig(**given)
    search, refusal = _begin(config, machine, tell, run)
    start, before, first = search.trial, search.result, list(search.answers)
    search.ask(_ask_mode(start.apply(config), machine, tell, plan, is_auto=is_auto))
    mode_evidence = search.answers[-1].evidence
    is_gpu = _plan(config, machine, search.trial).model.is_gpu
    for question in list_questions(config, search.result, len(os.sched_getaffinity(0)), is_gpu=is_gpu):
        # A batch that was needed to begin at all is not asked for again.
        if not first or question.title != _BATCH:
            search.ask(question)
    lines = [*_list_lines(search.answers), *choose_buffers(search.trial.apply(config), search.result.read_share)]
    if is_auto and not any(line.key == _MODE for line in lines):
        chosen = str(_plan(config, machine, search.trial).mode)
        lines = [Line(_MODE, chosen, f"{mode_evidence}; in the place of auto"), *lines]
    compared, variables = _compare(start, search, lines, verifies=verifies), _list_lines(search.answers, "environ")
    if compared.is_withdrawn:
        lines, variables = _list_lines(first), []
    return Tuned(before, search.answers, lines, variables, compared, refusal)


def make_trial(config: Mapping[str, Any], environ: Mapping[str, str], limit_bytes: int | None, is_whole: bool) -> Work:
    """The work of a trial's process: from a plan to values of `TrialResult`."""
    os.environ.update(environ)

    def measure(plan: Mapping[str, Any]) -> dict[str, Any]:
        # TensorFlow is imported only once its variables are set.
        from myxtts.tuning.measuring import run_trial

        return run_trial(XTTSConfig(**config), load_plan(plan), limit_bytes, is_whole=is_whole)

    return measure


def find_limit_bytes(plan: DevicePlan, machine: Machine) -> int | None:
    """How much of the model device's memory a run may fill; None where that is unknown."""
    if plan.model.limit_mib is not None:
        return plan.model.limit_mib * MIB
    if not plan.model.is_gpu:
        return int(machine.host_free_mib * HOST_SHARE) * MIB
    free = next((card.free_mib for card in machine.cards if card.physical_id == plan.model.physical_id), None)
    return None if free is None else int(free * CARD_SHARE) * MIB


def _begin(config: XTTSConfig, machine: Machine, tell: Tell, run: RunTrial) -> tuple[Search, str]:
    """A search that begins with the defaults, or where there is no memory for them with a batch that fits; and why there is none.

    Raises `MemoryBillError` where there is no memory for as many clips per update in smaller batches either.
    """
    tell("trying the defaults")
    first = run(config, machine, Trial())
    search = Search(config, machine, tell, run, first)
    if first.refusal:
        search.ask(_ask_batch(config, first.fitting))
        if search.result.refusal:
            raise MemoryBillError(
                f"{first.refusal}\nThe configurator needs a batch that fits, but found none ({search.answers[0].evidence}). Give a "
                "smaller --batch-size with more --grad-accum."
            )
    return search, first.refusal


def is_open(config: XTTSConfig, *keys: str) -> bool:
    """Whether nobody has given these settings: what a user gives stays."""
    return all(config.origins[key] == "default" or config.origins[key].startswith("preset ") for key in keys)


def list_questions(config: XTTSConfig, now: TrialResult, cores: int, *, is_gpu: bool) -> Iterator[Question]:
    """What is to be chosen by trying, in order. `now` is what a trial of the settings so far has shown."""

    def ask(title: str, key: str, values: Sequence[Any], skipped: str = "") -> Question:
        trials = [
            Trial({key: value}, name=("off", "on")[value] if isinstance(value, bool) else str(value))
            for value in values
        ]
        return Question(title, trials, skipped if is_open(config, key) else _GIVEN)

    yield _ask_batch(config, now.fitting)
    # Half precision needs loss scaling, bfloat16 does not; a CPU computes neither faster unless it was made for it.
    yield ask("precision", "data.mixed_precision", ["mixed_float16"] * is_gpu + ["mixed_bfloat16"])
    anew = "batches have no fixed shapes, so nearly every one would be compiled anew"
    # On a card it is on where it can be.
    yield ask("XLA", "data.enable_xla", [not is_gpu], "" if config.data.pad_to_fixed_length else anew)
    threads = [Trial(environ={GPU_THREAD_MODE: "gpu_private", GPU_THREAD_COUNT: "2"}, name="two for each card")]
    if not is_gpu:
        threads = [
            Trial(environ={INTRA_OP: str(count), INTER_OP: "2"}, name=f"{count} inside operations, 2 between")
            for count in sorted({cores, max(1, cores // 2)}, reverse=True)
        ]
    yield Question("threads", threads, "--deterministic fixes them" if config.training.deterministic else "")
    waits = now.read_share > MOST_READ_SHARE
    enough = f"a step waits for clips {now.read_share:.1%} of its time: more would gain nothing"
    # On few cores readers and training take them from each other.
    skipped = enough if not waits and (is_gpu or cores > 4) else ""
    yield ask("reader processes", "data.num_workers", [cores, 2 * cores] if waits else [1], skipped)


def _ask_batch(config: XTTSConfig, fitting: Sequence[tuple[int, int]]) -> Question:
    """Which batch, of those that fit into memory."""
    keys = ("data.batch_size", "training.gradient_accumulation_steps")
    now = (config.data.batch_size, config.training.gradient_accumulation_steps)
    others = [each for each in fitting if each != now]
    skipped = "" if others else "no other batch is known to fit into memory"
    if fitting and not others:
        skipped = f"{now[0]} x {now[1]} fits, and no larger batch makes up the same update"
    trials = [Trial(dict(zip(keys, each, strict=True)), name=f"{each[0]} x {each[1]}") for each in others]
    return Question(_BATCH, trials, skipped if is_open(config, *keys) else _GIVEN)


def _ask_mode(
    config: XTTSConfig, machine: Machine, tell: Tell, plan_mode: Callable[..., PlannedRun], *, is_auto: bool
) -> Question:
    """Which mode: of what `--mode auto` would take. Where that was given, it must be possible to measure it."""
    title = "which device prepares"
    if not is_open(config, _MODE, "data.data_gpu", "data.model_gpu", "data.enable_memory_isolation"):
        return Question(title, skipped=_GIVEN)
    if config.training.model_gpus is not None:
        return Question(title, skipped="--model-gpus says which")
    try:
        # Measured here and now: what a run in --checkpoint-dir has chosen is not what this machine shows today.
        asked = config.replace(training={"mode": "auto", "resume": "reset"})
        plan, choice = plan_mode(asked, machine=machine, tell=tell)
    except MyXTTSError as error:
        if is_auto:
            raise
        return Question(title, skipped=f"it could not be measured ({str(error).splitlines()[0]})")
    assert choice is not None
    if plan.others:
        ids = ",".join(str(role.physical_id) for role in plan.trainers)
        return Question(title, skipped=f"no trial has several train, as --model-gpus {ids} has. {choice.reason[:-1]}")
    settings: dict[str, Any] = {_MODE: str(plan.mode)}
    if plan.mode is _plan(config, machine, Trial()).mode:
        return Question(title, skipped=choice.reason.rstrip("."))
    if not plan.rehearsal and plan.mode is not Mode.SINGLE:
        settings["data.data_gpu"] = int(plan.data.physical_id or 0)
        settings["data.model_gpu"] = int(plan.model.physical_id or 0)
    return Question(title, [Trial(settings, name=str(plan.mode))], reason=choice.reason.rstrip("."))


def choose_buffers(config: XTTSConfig, read_share: float) -> Iterator[Line]:
    """Depths that are set by rule."""
    if is_open(config, "data.pipeline_buffer_size"):
        depth, why = config.data.pipeline_buffer_size, "so the default is deep enough"
        if read_share > MOST_READ_SHARE:
            depth, why = max(depth, DEEP_BUFFER), "so it may read further ahead"
        rule = f"rule: a step waits for clips {read_share:.1%} of its time, {why}"
        yield Line("data.pipeline_buffer_size", depth, rule)
    if is_open(config, "data.prefetch_buffer_size"):
        yield Line("data.prefetch_buffer_size", config.data.prefetch_depth, "rule: max(2, min(8, 64 // batch size))")


def _compare(start: Trial, search: Search, lines: Sequence[Line], *, verifies: bool) -> Comparison:
    """What it began with against all that would be written, both as runs, in turn so that a busy minute hits both."""
    default = replace(start, is_whole=True, name="the defaults")
    settings = {line.key: line.value for line in lines}
    written = Trial(settings, search.trial.environ, is_whole=True, name="these settings")
    now, then = start.apply(search.config).data, written.apply(search.config).data
    # The same settings twice would show the noise of the machine.
    is_same = search.trial == start and now.pipeline_buffer_size == then.pipeline_buffer_size
    trials, rounds = [default] if is_same else [default, written], _ROUNDS if verifies and not is_same else 1
    results: dict[str, list[TrialResult]] = {default.name: [], written.name: []}
    failure = ""
    for number, trial in itertools.product(range(rounds), trials):
        search.tell(f"comparing, round {number + 1} of {rounds}: {trial.name}")
        result = search.attempt(trial)
        if result.failure or result.refusal:
            failure = f"{trial.name} {result.describe()}"
            break
        results[trial.name].append(result)
    return Comparison(results[default.name], results[written.name], failure, keeps_batch=bool(start.settings))


def _plan(config: XTTSConfig, machine: Machine, trial: Trial) -> DevicePlan:
    return plan_devices(request_one(trial.apply(config)), machine)


def _list_lines(answers: Sequence[Answer], what: str = "settings") -> list[Line]:
    """The settings, or the variables (`environ`), that were chosen by trying."""
    return [
        Line(key, value, answer.evidence)
        for answer in answers
        if answer.taken is not None
        for key, value in getattr(answer.taken, what).items()
    ]


def format_yaml(config: XTTSConfig, lines: Sequence[Line], notes: Sequence[str]) -> str:
    """The user's own settings and the lines, each with its evidence, as a file that gives the same configuration.
    `notes` say in its head how it came about."""
    rows: dict[str, dict[str, tuple[Any, str]]] = {section: {} for section in SECTIONS}
    for section, values in config.given_values().items():
        for name, value in values.items():
            rows[section][name] = (value, f"given by you ({config.origins[f'{section}.{name}']})")
    for line in lines:
        section, _, name = line.key.partition(".")
        rows[section][name] = (line.value, line.evidence)
    text = [f"# {note}" for note in ("Written by `myxtts configure`. Use it with: myxtts train --config FILE", *notes)]
    for section, entries in rows.items():
        text += [f"{section}:"] if entries else []
        for name, (value, evidence) in entries.items():
            text += [f"  # {evidence}", f"  {name}: {format_value(value)}"]
    return "\n".join(text) + "\n"


def format_variables(lines: Sequence[Line], name: str) -> str:
    """A file for a shell to source."""
    text = [f"# Written by `myxtts configure`. Use it with: source {name}"]
    text += [f"# {line.evidence}\nexport {line.key}={line.value}" for line in lines]
    text += [] if lines else ["# Nothing is to be set: TensorFlow's own choices were not slower."]
    return "\n".join(text) + "\n"
