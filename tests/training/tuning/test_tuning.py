"""The configurator: what it tries, what it takes, and what it writes, with trials whose speed is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from myxtts.config import XTTSConfig
from myxtts.config.resolve import resolve_config
from myxtts.devices.machine import Machine
from myxtts.devices.memory import Growth
from myxtts.devices.nvml import MIB, Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import MachineError
from myxtts.monitoring.errors import MemoryBillError
from myxtts.training.errors import ProfileError
from myxtts.training.modes.auto_mode import PlannedRun, fix_mode
from myxtts.training.modes.choice import ModeChoice
from myxtts.training.modes.measuring_process import MeasuringError, MeasuringKilledError
from myxtts.training.modes.prediction import Layout
from myxtts.training.tuning import configurator as tuning
from myxtts.training.tuning.candidates import TuningFacts, choose_buffers, list_questions
from myxtts.training.tuning.configurator import Tuned, find_limit_bytes, tune
from myxtts.training.tuning.files import format_variables, format_yaml
from myxtts.training.tuning.search import Trial, TrialResult

REHEARSED = XTTSConfig(model={"size": "tiny"}, training={"rehearsal": True})
NO_CARDS = Machine(CardScan((), (), None), 16000)
FACTS = TuningFacts(cores=2, is_gpu=False, read_share=0.0)


def choose_layout(layout: Layout, machine: Machine) -> Callable[[XTTSConfig], PlannedRun]:
    """A planner that always finds this."""

    def plan(config: XTTSConfig) -> PlannedRun:
        made = plan_devices(fix_mode(PlanRequest.from_config(config), layout), machine)
        return PlannedRun(made, ModeChoice(layout, False, 0.1, "Tested.", ("a", "b")))

    return plan


class PacedTrials:
    """Trials whose steps take what their settings say."""

    def __init__(
        self,
        speeds: dict[str, float],
        *,
        read_share: float = 0.0,
        fails: str = "",
        fails_later: str = "",
        slow_later: float = 1.0,
    ):
        self.speeds = speeds
        """Setting or variable with its value -> the factor it brings."""
        self.read_share = read_share
        self.fails = fails
        self.fails_later = fails_later
        """Fails once the search is over."""
        self.slow_later = slow_later
        """Factor of whatever is set, once the search is over: what was found was luck."""
        self.seen: list[set[str]] = []
        self.whole: list[bool] = []

    def __call__(self, trial: Trial) -> TrialResult:
        words = {f"{key}={value}" for key, value in {**trial.settings, **trial.environ}.items()}
        self.seen.append(words)
        self.whole.append(trial.is_whole)
        if self.fails in words or (trial.is_whole and self.fails_later in words):
            raise MachineError("XLA is not to be had.")
        step_s = 0.100
        for word in words:
            step_s *= self.speeds.get(word, 1.0)
        if words and trial.is_whole:
            step_s *= self.slow_later
        return TrialResult(step_s, self.read_share, in_force={"words": ", ".join(sorted(words))})


class SmallMemory(PacedTrials):
    """Trials of which only those with some batches have the memory."""

    def __init__(self, speeds: dict[str, float], *, fitting: tuple[tuple[int, int], ...], is_killed: bool = False):
        super().__init__(speeds)
        self.fitting = fitting
        self.is_killed = is_killed

    def __call__(self, trial: Trial) -> TrialResult:
        result = super().__call__(trial)
        config = trial.apply(REHEARSED)
        if (config.data.batch_size, config.training.gradient_accumulation_steps) in self.fitting:
            return result
        if self.is_killed:
            raise MeasuringKilledError("It died of signal 9.")
        return TrialResult(math.inf, 0.0, self.fitting, refusal="It needs 30 GB.\nTry less.")


def run_tune(trials: PacedTrials, config: XTTSConfig = REHEARSED, *, verifies: bool = False) -> Tuned:
    return tune(
        config,
        NO_CARDS,
        verifies=verifies,
        tell=lambda _: None,
        run_trial=trials,
        plan=choose_layout(Layout.DUAL, NO_CARDS),
    )


def list_settings(tuned: Tuned) -> dict[str, Any]:
    return {line.key: line.value for line in tuned.lines}


def test_only_what_is_measured_faster_is_taken() -> None:
    trials = PacedTrials(
        {"data.enable_xla=True": 0.7, "data.mixed_precision=mixed_bfloat16": 3.0, "training.mode=dual": 0.8}
    )
    tuned = run_tune(trials)
    settings = list_settings(tuned)
    assert settings["data.enable_xla"] is True
    assert settings["training.mode"] == "dual"
    assert "data.mixed_precision" not in settings
    by_title = {answer.title: answer for answer in tuned.answers}
    assert "mixed_bfloat16 240 ms" in by_title["precision"].evidence
    assert "before 80 ms" in by_title["precision"].evidence
    # Each trial stands on what was found before it.
    assert {"training.mode=dual", "data.enable_xla=True"} < trials.seen[-1]


@pytest.mark.parametrize(("factor", "is_taken"), [(0.98, False), (0.96, True)])
def test_a_gain_within_the_noise_is_none(factor: float, is_taken: bool) -> None:
    tuned = run_tune(PacedTrials({"TF_NUM_INTRAOP_THREADS=1": factor}))
    assert [line.key for line in tuned.variables] == (
        ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"] if is_taken else []
    )


def test_a_trial_that_fails_is_told_and_nothing_else_is_lost() -> None:
    tuned = run_tune(PacedTrials({"TF_NUM_INTRAOP_THREADS=1": 0.5}, fails="data.enable_xla=True"))
    by_title = {answer.title: answer for answer in tuned.answers}
    assert by_title["XLA"].evidence.startswith("measured: on failed (XLA is not to be had.)")
    assert by_title["threads"].taken is not None


def test_the_defaults_must_run() -> None:
    def fail(trial: Trial) -> TrialResult:
        raise MachineError("out of memory")

    with pytest.raises(MachineError, match="out of memory"):
        tune(REHEARSED, NO_CARDS, verifies=False, tell=lambda _: None, run_trial=fail)


def read_batch(tuned: Tuned) -> tuple[int, int]:
    settings = list_settings(tuned)
    return settings["data.batch_size"], settings["training.gradient_accumulation_steps"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_batch_that_fits_is_taken_however_slow_it_is(is_killed: bool) -> None:
    batch_size = REHEARSED.data.batch_size
    fitting = ((batch_size // 2, 2),)
    trials = SmallMemory(
        {f"data.batch_size={batch_size // 2}": 5.0, "data.enable_xla=True": 0.5}, fitting=fitting, is_killed=is_killed
    )
    tuned = run_tune(trials)
    assert read_batch(tuned) == fitting[0]
    assert list_settings(tuned)["data.enable_xla"] is True
    assert tuned.before.step_s == pytest.approx(0.5)
    assert tuned.refusal.startswith("It died of" if is_killed else "It needs 30 GB.")
    assert f"{batch_size // 2} x 2 500 ms" in tuned.answers[0].evidence
    assert tuned.answers[0].evidence.endswith(" a step; before does not fit into memory")
    # Once: what had to be answered at the beginning is no question any more.
    assert [answer.title for answer in tuned.answers].count("batch x accumulation") == 1
    # It is compared with what would run, not with what would not.
    assert tuned.verification is not None
    assert tuned.verification.gain == pytest.approx(0.5)
    assert all(f"data.batch_size={batch_size // 2}" in words for words in trials.seen[-2:])


def test_a_batch_that_fits_stays_where_all_else_is_withdrawn() -> None:
    batch_size = REHEARSED.data.batch_size
    trials = SmallMemory({"data.enable_xla=True": 0.5}, fitting=((batch_size // 2, 2),))
    trials.fails_later = "data.enable_xla=True"
    tuned = run_tune(trials)
    assert tuned.is_withdrawn
    assert list_settings(tuned) == {"data.batch_size": batch_size // 2, "training.gradient_accumulation_steps": 2}


@pytest.mark.parametrize("data", [{}, {"batch_size": 64}], ids=["none fits", "it was given"])
def test_where_no_batch_fits_the_bill_is_the_answer(data: dict[str, Any]) -> None:
    with pytest.raises(MemoryBillError, match=r"It needs 30 GB\.\nTry less\.\n.*found none \(not tried"):
        run_tune(SmallMemory({}, fitting=()), REHEARSED.replace(data=data))


def test_a_candidate_without_the_memory_is_not_taken() -> None:
    class Full(PacedTrials):
        def __call__(self, trial: Trial) -> TrialResult:
            result = super().__call__(trial)
            if "data.enable_xla" not in trial.settings:
                return result
            return replace(result, step_s=math.inf, refusal="It needs 30 GB.")

    tuned = run_tune(Full({}))
    by_title = {answer.title: answer for answer in tuned.answers}
    assert by_title["XLA"].evidence == "measured: on does not fit into memory; before 100 ms"
    assert by_title["XLA"].taken is None


def test_a_mode_that_cannot_be_measured_loses_nothing_else() -> None:
    def fail(config: XTTSConfig) -> PlannedRun:
        raise MeasuringError("Measuring died.\nGive --mode single.")

    config = REHEARSED.replace(training={"mode": "auto"})
    trials = PacedTrials({"data.enable_xla=True": 0.5})
    tuned = tune(config, NO_CARDS, verifies=False, tell=lambda _: None, run_trial=trials, plan=fail)
    assert tuned.answers[0].evidence == "not tried: it could not be measured (Measuring died.)"
    assert list_settings(tuned)["data.enable_xla"] is True
    # What was given and could not be answered stays.
    assert "training.mode" not in list_settings(tuned)


@pytest.mark.parametrize("verifies", [False, True])
def test_a_round_that_fails_in_the_end_withdraws(verifies: bool) -> None:
    tuned = run_tune(PacedTrials({"data.enable_xla=True": 0.5}, fails_later="data.enable_xla=True"), verifies=verifies)
    assert tuned.is_withdrawn
    assert (tuned.lines, tuned.variables) == ((), ())
    assert tuned.verification is not None
    assert tuned.verification.failure == "these settings failed (XLA is not to be had.)"
    assert tuned.verification.in_force == {"words": ""}


def test_without_verifying_it_is_compared_once_and_withdrawn_where_it_is_slower() -> None:
    lucky = PacedTrials({"data.enable_xla=True": 0.5}, slow_later=4.0)
    assert run_tune(lucky).is_withdrawn
    assert lucky.whole[-2:] == [True, True]
    assert not lucky.whole[-3]
    kept = run_tune(PacedTrials({"data.enable_xla=True": 0.5}))
    assert not kept.is_withdrawn
    nothing = PacedTrials({})
    assert run_tune(nothing).verification is None
    assert not any(nothing.whole), "there is nothing to compare"


@pytest.mark.parametrize(("is_auto", "stays"), [(True, True), (False, False)])
@pytest.mark.parametrize("can_launch", [True, False])
def test_what_two_processes_do_is_left_to_auto(is_auto: bool, stays: bool, can_launch: bool, tmp_path: Path) -> None:
    def plan(config: XTTSConfig) -> PlannedRun:
        layout = Layout.DATA_PARALLEL if can_launch else Layout.SINGLE
        made = choose_layout(layout, NO_CARDS)(config)
        choice = ModeChoice(layout, False, 0.1, "Both train.", ("a", "b"), is_parallel_faster=not can_launch)
        return replace(made, choice=choice, workers=(0, 1) if can_launch else ())

    config = REHEARSED.replace(training={"mode": "auto"}) if is_auto else REHEARSED
    trials = PacedTrials({"data.enable_xla=True": 0.5})
    tuned = tune(config, NO_CARDS, verifies=False, tell=lambda _: None, run_trial=trials, plan=plan)
    assert "training.mode" not in list_settings(tuned)
    evidence = tuned.answers[0].evidence
    assert "Both train" in evidence
    assert ("--mode auto stays" in evidence) == stays
    assert ("--mode auto trains so (data-parallel)" in evidence) == (can_launch and not is_auto)
    path = tmp_path / "tuned.yaml"
    path.write_text(format_yaml(config, tuned.lines, []))
    assert resolve_config(yaml_path=path).training.mode == ("auto" if stays else None)


def test_the_reason_for_a_mode_is_shown_beside_its_trial() -> None:
    evidence = run_tune(PacedTrials({"training.mode=dual": 0.8})).answers[0].evidence
    assert evidence == "predicted: Tested; measured: dual 80 ms a step; before 100 ms"


def test_whether_workers_can_be_started_is_asked_where_the_mode_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def plan_run(config: XTTSConfig, *, find_launch_obstacle: Any, **_: Any) -> PlannedRun:
        asked.append(find_launch_obstacle())
        return choose_layout(Layout.SINGLE, NO_CARDS)(config)

    monkeypatch.setattr(tuning, "plan_run", plan_run)
    tune(
        REHEARSED,
        NO_CARDS,
        verifies=False,
        tell=lambda _: None,
        run_trial=PacedTrials({}),
        find_launch_obstacle=lambda: None,
    )
    assert asked == [None]


def test_a_process_that_says_why_it_does_not_fit_has_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"fitting": [[4, 2]], "refusal": "It needs 30 GB."}
    monkeypatch.setattr(tuning, "measure_in_process", lambda *_: found)
    result = tuning.run_in_process(REHEARSED, NO_CARDS, Trial())
    assert (result.fits, result.step_s, result.fitting) == (False, math.inf, ((4, 2),))
    monkeypatch.setattr(
        tuning,
        "measure_in_process",
        lambda *_: {"fitting": [], "step_s": 0.1, "read_share": 0.2, "in_force": {"a": "b"}},
    )
    assert tuning.run_in_process(REHEARSED, NO_CARDS, Trial()) == TrialResult(0.1, 0.2, (), {"a": "b"})


def test_verifying_alternates_and_reads_back_what_is_in_force() -> None:
    trials = PacedTrials({"data.enable_xla=True": 0.7})
    tuned = run_tune(trials, verifies=True)
    assert tuned.verification is not None
    # All that is written, with the buffers that go by rule, and as a run would have them.
    written = {f"{line.key}={line.value}" for line in tuned.lines}
    assert {"data.enable_xla=True", "data.pipeline_buffer_size=50"} < written
    assert trials.seen[-6:] == [set(), written, set(), written, set(), written]
    assert trials.whole == [False] * (len(trials.whole) - 6) + [True] * 6
    assert tuned.verification.gain == pytest.approx(0.3)
    assert tuned.verification.in_force == {"words": ", ".join(sorted(written))}


def test_a_deeper_buffer_by_rule_is_verified_too() -> None:
    trials = PacedTrials({}, read_share=0.2)
    tuned = run_tune(trials, REHEARSED.replace(data={"num_workers": 2}), verifies=True)
    assert "data.pipeline_buffer_size=100" in trials.seen[-1]
    assert tuned.verification is not None
    assert len(tuned.verification.tuned_s) == 3
    assert tuned.is_withdrawn, "the same speed is no gain"


def test_defaults_that_stay_are_not_compared_with_themselves() -> None:
    trials = PacedTrials({})
    tuned = run_tune(trials, verifies=True)
    # Once to begin with, and once as a run would have them, to see what is in force.
    assert [whole for words, whole in zip(trials.seen, trials.whole, strict=True) if not words] == [False, True]
    assert not tuned.is_withdrawn
    assert tuned.verification is not None
    assert (tuned.verification.gain, tuned.verification.in_force) == (0.0, {"words": ""})


@pytest.mark.parametrize(("later", "is_withdrawn"), [(4.0, True), (2.0, True), (2.04, True), (1.9, False)])
def test_what_gains_nothing_in_the_end_is_withdrawn(tmp_path: Path, later: float, is_withdrawn: bool) -> None:
    trials = PacedTrials({"data.enable_xla=True": 0.5}, slow_later=later)
    tuned = run_tune(trials, verifies=True)
    assert tuned.is_withdrawn == is_withdrawn
    if not is_withdrawn:
        return
    assert (tuned.lines, tuned.variables) == ((), ())
    assert tuned.verification is not None
    assert tuned.verification.in_force == {"words": ""}, "what stays in force are the defaults"
    path = tmp_path / "tuned.yaml"
    path.write_text(format_yaml(REHEARSED, tuned.lines, []))
    assert resolve_config(yaml_path=path) == REHEARSED


def test_what_the_user_gives_stays() -> None:
    config = REHEARSED.replace(
        data={"mixed_precision": "float32", "enable_xla": False, "num_workers": 1, "batch_size": 4},
        training={"mode": "single", "deterministic": True},
    )
    trials = PacedTrials({})
    tuned = run_tune(trials, config)
    assert trials.seen == [set()]
    given = [answer.title for answer in tuned.answers if "you have given it" in answer.evidence]
    assert given == ["which device prepares", "batch x accumulation", "precision", "XLA", "reader processes"]
    assert {answer.title: answer.evidence for answer in tuned.answers}["threads"] == (
        "not tried: --deterministic fixes them"
    )


@pytest.mark.parametrize(
    ("facts", "title", "names"),
    [
        (FACTS, "precision", ["mixed_bfloat16"]),
        (replace(FACTS, is_gpu=True), "precision", ["mixed_float16", "mixed_bfloat16"]),
        (FACTS, "threads", ["2 inside operations, 2 between", "1 inside operations, 2 between"]),
        (replace(FACTS, is_gpu=True), "threads", ["two for each card"]),
        (replace(FACTS, is_gpu=True), "reader processes", []),
        (replace(FACTS, is_gpu=True, cores=8, read_share=0.3), "reader processes", ["8", "16"]),
        (replace(FACTS, fitting=((4, 2), (8, 1))), "batch x accumulation", ["4 x 2"]),
        (replace(FACTS, fitting=((8, 1),)), "batch x accumulation", []),
    ],
)
def test_what_is_tried_follows_from_the_machine(facts: TuningFacts, title: str, names: list[str]) -> None:
    config = XTTSConfig(model={"size": "base"})
    assert (config.data.batch_size, config.training.gradient_accumulation_steps) == (8, 1)
    (question,) = [each for each in list_questions(config, facts) if each.title == title]
    assert [candidate.name for candidate in question.candidates] == names
    assert bool(names) != bool(question.skipped)
    clips = config.data.batch_size * config.training.gradient_accumulation_steps
    for candidate in question.candidates:
        changed = Trial().add(candidate).apply(config)
        assert changed.data.batch_size * changed.training.gradient_accumulation_steps == clips


def test_buffers_follow_rules_that_are_said() -> None:
    calm = {key: (value, why) for key, value, why in choose_buffers(REHEARSED, 0.0)}
    assert calm["data.pipeline_buffer_size"][0] == 50
    assert calm["data.prefetch_buffer_size"][0] == REHEARSED.data.prefetch_depth
    late = {key: (value, why) for key, value, why in choose_buffers(REHEARSED, 0.2)}
    assert late["data.pipeline_buffer_size"][0] == 100
    assert "waits for clips 20.0%" in late["data.pipeline_buffer_size"][1]


def test_the_file_loads_as_what_was_tried_and_every_line_has_its_evidence(tmp_path: Path) -> None:
    config = REHEARSED.replace(data={"batch_size": 4})
    tuned = run_tune(PacedTrials({"data.enable_xla=True": 0.7, "training.mode=dual": 0.9}), config)
    text = format_yaml(config, tuned.lines, ["A note."])
    path = tmp_path / "tuned.yaml"
    path.write_text(text)
    loaded = resolve_config(yaml_path=path)
    assert loaded.data.enable_xla is True
    assert loaded.training.mode == "dual"
    assert (loaded.model.size, loaded.data.batch_size, loaded.training.rehearsal) == ("tiny", 4, True)
    rows = text.splitlines()
    settings = [number for number, row in enumerate(rows) if row.startswith("  ") and not row.lstrip().startswith("#")]
    assert len(settings) >= 6
    assert all(rows[number - 1].startswith("  # ") for number in settings)


def test_variables_can_be_sourced() -> None:
    tuned = run_tune(PacedTrials({"TF_NUM_INTRAOP_THREADS=2": 0.8}))
    text = format_variables(tuned.variables, "tuned.env.sh")
    assert "export TF_NUM_INTRAOP_THREADS=2\n" in text
    assert "source tuned.env.sh" in text
    assert all(row.startswith(("#", "export ")) for row in text.splitlines())
    assert "Nothing is to be set" in format_variables([], "tuned.env.sh")


def test_the_devices_of_the_mode_are_written_for_cards_only() -> None:
    cards = tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000 - id) for id in (3, 5))
    machine = Machine(CardScan(cards, (), None), 16000)
    tuned = tune(
        XTTSConfig(),
        machine,
        verifies=False,
        tell=lambda _: None,
        run_trial=PacedTrials({"training.mode=dual": 0.6}),
        plan=choose_layout(Layout.DUAL, machine),
    )
    settings = list_settings(tuned)
    assert (settings["training.mode"], settings["data.data_gpu"], settings["data.model_gpu"]) == ("dual", 5, 3)
    assert "data.data_gpu" not in list_settings(run_tune(PacedTrials({"training.mode=dual": 0.6})))
    plan = plan_devices(PlanRequest(mode="single"), machine)
    assert isinstance(plan.model.memory, Growth)
    assert find_limit_bytes(plan, machine) == int((24000 - 3) * 0.9) * MIB
    assert find_limit_bytes(plan_devices(PlanRequest(), NO_CARDS), NO_CARDS) == 8000 * MIB
    assert plan_devices(PlanRequest(), NO_CARDS).mode is Mode.SINGLE


def test_a_decoder_is_refused_before_anything_is_tried() -> None:
    trials = PacedTrials({})
    with pytest.raises(ProfileError, match="--stage is decoder"):
        run_tune(trials, REHEARSED.replace(training={"stage": "decoder", "init_from": "somewhere"}))
    assert trials.seen == []


def test_the_mode_is_measured_whatever_an_earlier_run_has_chosen() -> None:
    asked: list[tuple[str | None, str]] = []

    def plan(config: XTTSConfig) -> PlannedRun:
        asked.append((config.training.mode, config.training.resume))
        return choose_layout(Layout.DUAL, NO_CARDS)(config)

    tune(REHEARSED, NO_CARDS, verifies=False, tell=lambda _: None, run_trial=PacedTrials({}), plan=plan)
    assert asked == [("auto", "reset")]


@pytest.mark.parametrize(("speeds", "mode"), [({"training.mode=dual": 0.6}, "dual"), ({}, "single")])
def test_auto_is_answered_by_the_mode_that_was_measured(tmp_path: Path, speeds: dict[str, float], mode: str) -> None:
    config = REHEARSED.replace(training={"mode": "auto"})
    tuned = run_tune(PacedTrials(speeds), config)
    assert list_settings(tuned)["training.mode"] == mode
    path = tmp_path / "tuned.yaml"
    path.write_text(format_yaml(config, tuned.lines, []))
    assert resolve_config(yaml_path=path).training.mode == mode


def test_with_several_training_cards_the_mode_is_no_question() -> None:
    config = XTTSConfig(training={"model_gpus": "0,1", "rehearsal": True})
    tuned = tune(config, NO_CARDS, verifies=False, tell=lambda _: None, run_trial=PacedTrials({}))
    assert tuned.answers[0].evidence == "not tried: --model-gpus says which"
