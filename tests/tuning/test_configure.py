"""`myxtts configure`: what it tries, takes, tells and writes, with trials whose speed is known."""

import math
import re
from dataclasses import dataclass, field, replace

import pytest

from myxtts.cli import configure as command
from myxtts.cli import main
from myxtts.config import XTTSConfig
from myxtts.config.sources import resolve_config
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import MIB, Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import MachineError, MemoryBillError
from myxtts.training.mode import MeasuringError, ModeChoice, PlannedRun
from myxtts.tuning import configure
from myxtts.tuning.configure import Answer, TrialResult
from tests.cli.test_profile_command import SMALL
from tests.support.processes import run_python

SCRIPT = "utilities/configure_max_gpu_utilization.py"
REHEARSED = XTTSConfig(model={"size": "tiny"}, training={"rehearsal": True})
HALF_BATCH = REHEARSED.data.batch_size // 2
AUTO = REHEARSED.replace(training={"mode": "auto"})
NO_CARDS = Machine(CardScan((), (), None), 16000)
XLA = "data.enable_xla=True"


def choose_layout(layout, machine=NO_CARDS):
    """A planner that always finds this."""

    def plan(config, **_):
        # Measured whatever an earlier run has chosen.
        assert (config.training.mode, config.training.resume) == ("auto", "reset")
        made = plan_devices(replace(PlanRequest.from_config(config), mode=str(layout)), machine)
        return PlannedRun(made, ModeChoice(layout, False, 0.1, "Tested.", ("a", "b")))

    return plan


@dataclass
class PacedTrials:
    """Trials whose steps take what their settings say."""

    speeds: dict[str, float] = field(default_factory=dict)
    """Setting or variable with its value -> the factor it brings."""
    read_share: float = 0.0
    fails: str = ""
    fails_later: str = ""
    """Fails once the search is over."""
    slow_later: float = 1.0
    """Factor of whatever is set, once the search is over: what was found was luck."""
    fitting: tuple | None = None
    """Batches that there is memory for, where not for all."""
    full: str = ""
    """What there is no memory for."""
    seen: list = field(default_factory=list)
    whole: list = field(default_factory=list)

    def __call__(self, trial):
        words = {f"{key}={value}" for key, value in {**trial.settings, **trial.environ}.items()}
        self.seen.append(words)
        self.whole.append(trial.is_whole)
        if self.fails in words or (trial.is_whole and self.fails_later in words):
            raise MachineError("XLA is not to be had.")
        config = trial.apply(REHEARSED)
        batch = (config.data.batch_size, config.training.gradient_accumulation_steps)
        if self.full in words or (self.fitting is not None and batch not in self.fitting):
            return TrialResult(fitting=self.fitting or (), refusal="It needs 30 GB.\nTry less.")
        step_s = 0.1 * math.prod(self.speeds.get(word, 1.0) for word in words)
        step_s *= self.slow_later if words and trial.is_whole else 1.0
        return TrialResult(step_s, self.read_share, in_force={"words": ", ".join(sorted(words))})


def run_tune(trials, config=REHEARSED, *, verifies=False, machine=NO_CARDS, plan=None):
    plan = plan or choose_layout(Mode.DUAL, machine)
    options = {"verifies": verifies, "tell": lambda _: None, "plan": plan}
    return configure.tune(config, machine, run=lambda config, machine, trial: trials(trial), **options)


def list_settings(tuned):
    return {line.key: line.value for line in tuned.lines}


def list_answers(tuned):
    return {answer.title: answer for answer in tuned.answers}


@pytest.fixture
def write(tmp_path):
    """Tunes with trials whose speed is known: what is told, in one line, the file of settings and that of variables."""

    def run(trials, config=REHEARSED, **options):
        tuned = run_tune(trials, config, **options)
        told = command.format_tuned(tuned)
        assert max(map(len, told.splitlines())) <= 80
        path = tmp_path / "mine.yaml"
        path.write_text(configure.format_yaml(config, tuned.lines, command.describe_origin(tuned)))
        return " ".join(told.split()), path, configure.format_variables(tuned.variables, "mine.env.sh")

    return run


def test_only_what_is_measured_faster_is_taken():
    trials = PacedTrials({XLA: 0.7, "data.mixed_precision=mixed_bfloat16": 3.0, "training.mode=dual": 0.8})
    tuned = run_tune(trials)
    settings, answers = list_settings(tuned), list_answers(tuned)
    assert (settings["data.enable_xla"], settings["training.mode"]) == (True, "dual")
    assert "data.mixed_precision" not in settings
    assert answers["precision"].evidence == "measured: mixed_bfloat16 240 ms a step; before 80 ms"
    assert tuned.answers[0].evidence == "predicted: Tested; measured: dual 80 ms a step; before 100 ms"
    # Each trial stands on what was found before it.
    assert {"training.mode=dual", XLA} < trials.seen[-1]


def test_several_that_should_train_are_named_and_not_tried():
    """A trial has one device train."""

    def plan(config, **_):
        made = plan_devices(PlanRequest(rehearsal=True, model_gpu=1, other_gpus=(0,)), NO_CARDS)
        return PlannedRun(made, ModeChoice(Mode.SINGLE, False, 0.1, "Tested.", ("a", "b"), cards=2))

    trials = PacedTrials()
    told = list_answers(run_tune(trials, plan=plan))["which device prepares"]
    assert "--model-gpus 1,0 has. Tested" in told.evidence
    assert not any("mode" in word for words in trials.seen for word in words)


@pytest.mark.parametrize(("factor", "is_taken"), [(0.98, False), (0.96, True)])
def test_a_gain_within_the_noise_is_none(factor, is_taken):
    tuned = run_tune(PacedTrials({"TF_NUM_INTRAOP_THREADS=1": factor}))
    names = ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]
    assert [line.key for line in tuned.variables] == (names if is_taken else [])


@pytest.mark.parametrize(
    ("bad", "said"),
    [({"fails": XLA}, "on failed (XLA is not to be had.)"), ({"full": XLA}, "on does not fit into memory")],
)
def test_a_candidate_that_fails_or_has_no_memory_is_told_and_nothing_else_is_lost(bad, said):
    answers = list_answers(run_tune(PacedTrials({"TF_NUM_INTRAOP_THREADS=1": 0.5}, **bad)))
    assert answers["XLA"] == Answer("XLA", f"measured: {said}; before 100 ms")
    assert answers["threads"].taken is not None


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("killed by SIGABRT", "killed by SIGABRT; it wrote last: no card"),
        ("exit code 1: no card", "exit code 1: no card"),
    ],
)
def test_how_the_process_of_a_trial_ended_is_told(ending, told):
    error = MeasuringError(f"Measuring failed: {ending}.\nTraceback\nno card")
    error.ending = ending

    def fail(trial):
        if XLA in {f"{key}={value}" for key, value in trial.settings.items()}:
            raise error
        return TrialResult(0.1)

    assert f"on failed ({told})" in list_answers(run_tune(fail))["XLA"].evidence


def test_a_batch_that_fits_is_taken_however_slow_it_is():
    speeds = {f"data.batch_size={HALF_BATCH}": 5.0, XLA: 0.5}
    trials = PacedTrials(speeds, fitting=((HALF_BATCH, 2),))
    tuned = run_tune(trials)
    batch = {"data.batch_size": HALF_BATCH, "training.gradient_accumulation_steps": 2}
    assert list_settings(tuned).items() > {**batch, "data.enable_xla": True}.items()
    assert tuned.before.step_s == pytest.approx(0.5)
    assert tuned.refusal.startswith("It needs 30 GB.")
    assert f"{HALF_BATCH} x 2 500 ms" in tuned.answers[0].evidence
    assert tuned.answers[0].evidence.endswith(" a step; before does not fit into memory")
    # Once: what had to be answered at the beginning is no question any more.
    assert [answer.title for answer in tuned.answers].count("batch x accumulation") == 1
    # It is compared with what would run, not with what would not.
    assert tuned.comparison.gain == pytest.approx(0.5)
    assert all(f"data.batch_size={HALF_BATCH}" in words for words in trials.seen[-2:])
    # And it stays where all else is withdrawn.
    withdrawn = run_tune(replace(trials, fails_later=XLA))
    assert withdrawn.comparison.is_withdrawn
    assert list_settings(withdrawn) == batch


@pytest.mark.parametrize("data", [{}, {"batch_size": 64}], ids=["none fits", "it was given"])
def test_where_no_batch_fits_the_bill_is_the_answer(data):
    with pytest.raises(MemoryBillError, match=r"It needs 30 GB\.\nTry less\.\n.*found none \(not tried"):
        run_tune(PacedTrials(fitting=()), REHEARSED.replace(data=data))


def test_a_mode_that_cannot_be_measured_loses_nothing_else():
    def fail(config, **_):
        raise MeasuringError("Measuring died.\nGive --mode single.")

    tuned = run_tune(PacedTrials({XLA: 0.5}), plan=fail)
    assert tuned.answers[0].evidence == "not tried: it could not be measured (Measuring died.)"
    assert list_settings(tuned)["data.enable_xla"] is True
    # Where it was asked for, the error says what to give instead.
    with pytest.raises(MeasuringError, match="Give --mode single"):
        run_tune(PacedTrials(), AUTO, plan=fail)


@pytest.mark.parametrize(("speeds", "mode"), [({"training.mode=dual": 0.6}, "dual"), ({}, "single")])
def test_auto_is_answered_by_the_mode_that_was_measured(write, speeds, mode):
    assert resolve_config(yaml_path=write(PacedTrials(speeds), AUTO)[1]).training.mode == mode


def test_verifying_alternates_and_reads_back_what_is_in_force():
    trials = PacedTrials({XLA: 0.7})
    tuned = run_tune(trials, verifies=True)
    # All that is written, with the buffers that go by rule, and as a run would have them.
    written = {f"{line.key}={line.value}" for line in tuned.lines}
    assert {XLA, "data.pipeline_buffer_size=50"} < written
    assert trials.seen[-6:] == [set(), written, set(), written, set(), written]
    assert trials.whole == [False] * (len(trials.whole) - 6) + [True] * 6
    assert tuned.comparison.gain == pytest.approx(0.3)
    assert tuned.comparison.in_force == {"words": ", ".join(sorted(written))}
    deeper = PacedTrials(read_share=0.2)
    tuned = run_tune(deeper, REHEARSED.replace(data={"num_workers": 2}), verifies=True)
    assert "data.pipeline_buffer_size=100" in deeper.seen[-1], "a buffer by rule is verified too"
    assert tuned.comparison.is_withdrawn, "the same speed is no gain"


def test_what_the_user_gives_stays():
    config = REHEARSED.replace(
        data={"mixed_precision": "float32", "enable_xla": False, "num_workers": 1, "batch_size": 4},
        training={"mode": "single", "deterministic": True},
    )
    trials = PacedTrials()
    tuned = run_tune(trials, config)
    assert trials.seen == [set(), set()], "once to begin with, and once as a run would have them"
    given = [answer.title for answer in tuned.answers if "you have given it" in answer.evidence]
    assert given == ["which device prepares", "batch x accumulation", "precision", "XLA", "reader processes"]
    assert list_answers(tuned)["threads"].evidence == "not tried: --deterministic fixes them"
    tuned = run_tune(trials, XTTSConfig(training={"model_gpus": "0,1", "rehearsal": True}))
    assert tuned.answers[0].evidence == "not tried: --model-gpus says which"


@pytest.mark.parametrize(
    ("facts", "title", "names"),
    [
        ({}, "precision", ["mixed_bfloat16"]),
        ({"is_gpu": True}, "precision", ["mixed_float16", "mixed_bfloat16"]),
        ({}, "threads", ["2 inside operations, 2 between", "1 inside operations, 2 between"]),
        ({"is_gpu": True}, "threads", ["two for each card"]),
        ({}, "reader processes", ["1"]),
        ({"is_gpu": True}, "reader processes", []),
        ({"is_gpu": True, "cores": 8, "read_share": 0.3}, "reader processes", ["8", "16"]),
        ({"fitting": ((4, 2), (8, 1))}, "batch x accumulation", ["4 x 2"]),
        ({"fitting": ((8, 1),)}, "batch x accumulation", []),
    ],
)
def test_what_is_tried_follows_from_the_machine(facts, title, names):
    config = XTTSConfig(model={"size": "base"})
    assert (config.data.batch_size, config.training.gradient_accumulation_steps) == (8, 1)
    now = TrialResult(0.1, facts.get("read_share", 0.0), facts.get("fitting", ()))
    questions = configure.list_questions(config, now, facts.get("cores", 2), is_gpu=facts.get("is_gpu", False))
    (question,) = [each for each in questions if each.title == title]
    assert bool(names) != bool(question.skipped)
    assert not names or [candidate.name for candidate in question.candidates] == names
    for candidate in question.candidates:
        changed = candidate.apply(config)
        assert changed.data.batch_size * changed.training.gradient_accumulation_steps == 8


def test_the_file_loads_as_what_was_tried_and_every_line_has_its_evidence(write):
    trials = PacedTrials({XLA: 0.7, "training.mode=dual": 0.9, "data.num_workers=4": 0.9}, read_share=0.2)
    _, path, _ = write(trials, REHEARSED.replace(data={"batch_size": 4}))
    loaded, text = resolve_config(yaml_path=path), path.read_text()
    assert (loaded.data.enable_xla, loaded.training.mode, loaded.data.pipeline_buffer_size) == (True, "dual", 100)
    assert (loaded.model.size, loaded.data.batch_size, loaded.training.rehearsal) == ("tiny", 4, True)
    assert "waits for clips 20.0%" in text
    rows = text.splitlines()
    settings = [number for number, row in enumerate(rows) if row.startswith("  ") and not row.lstrip().startswith("#")]
    assert len(settings) >= 6
    assert all(rows[number - 1].startswith("  # ") for number in settings)


def test_the_devices_of_the_mode_are_written_for_cards_only():
    cards = tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000 - id) for id in (3, 5))
    machine = Machine(CardScan(cards, (), None), 16000)
    dual = PacedTrials({"training.mode=dual": 0.6})
    settings = list_settings(run_tune(dual, XTTSConfig(), machine=machine))
    assert (settings["training.mode"], settings["data.data_gpu"], settings["data.model_gpu"]) == ("dual", 5, 3)
    assert "data.data_gpu" not in list_settings(run_tune(dual))
    plan = plan_devices(PlanRequest(mode="single"), machine)
    assert configure.find_limit_bytes(plan, machine) == int((24000 - 3) * 0.9) * MIB
    assert configure.find_limit_bytes(plan_devices(PlanRequest(), NO_CARDS), NO_CARDS) == 8000 * MIB


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data-gpu", "0", "--model-gpu", "1", "--verify"], "same on one device with\n  myxtts configure --verify\n"),
        (["--stage", "decoder", "--init-from", "somewhere"], "--stage is decoder"),
    ],
)
def test_what_cannot_be_had_is_an_error_before_anything_is_measured(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.run_command("configure", words, "myxtts configure") == 2
    told = capsys.readouterr().err
    assert said in told
    assert "trying" not in told
    assert not list(tmp_path.iterdir()), "a refusal leaves no file behind"


def test_what_was_found_is_told_and_written_with_its_evidence(write):
    trials = PacedTrials({XLA: 0.7, "TF_NUM_INTEROP_THREADS=2": 0.8})
    words = ["--rehearsal", "--model-size", "tiny", "--batch-size", "4"]
    given = main.make_parser("configure", "myxtts configure").parse_all(words)
    out, path, variables = write(trials, resolve_config(flags=given.given))
    assert "With the defaults a step takes 100 ms in a short trial on this machine." in out
    assert "COMPARED, one run of each (--verify: three)" in out
    assert "precision: unchanged" in out
    assert "IN FORCE with these settings, read back from the process that ran them" in out
    assert "XLA: on measured: on 70 ms a step; before 100 ms" in out
    config, text = resolve_config(yaml_path=path), path.read_text()
    assert (config.data.enable_xla, config.data.batch_size, config.data.mixed_precision) == (True, 4, "float32")
    assert "  # measured: on 70 ms a step; before 100 ms\n  enable_xla: true\n" in text
    assert "  # given by you (--batch-size)\n  batch_size: 4\n" in text
    assert "# 44.0% faster than the defaults; differences below" in text
    assert "Compared once; --verify compares three times." in text
    assert "source mine.env.sh" in variables
    assert "export TF_NUM_INTEROP_THREADS=2\n" in variables
    assert all(row.startswith(("#", "export ")) for row in variables.splitlines())


def test_defaults_that_stay_are_not_compared_with_themselves(write):
    trials = PacedTrials()
    out, path, _ = write(trials, verifies=True)
    # Once to begin with, and once as a run would have them, to see what is in force.
    assert [whole for words, whole in zip(trials.seen, trials.whole, strict=True) if not words] == [False, True]
    assert "Nothing faster than the defaults was found, so they stay. IN FORCE with the defaults" in out
    assert "# Nothing faster than the defaults was found, so they stay.\n" in path.read_text()


KEPT = "defaults kept. What was found is withdrawn; the file changes nothing. IN FORCE with the defaults"


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize(
    ("later", "told"),
    [
        ({"slow_later": 2.4}, f"no gain, 20.0% slower: {KEPT}"),
        ({"slow_later": 2.0}, f"no gain: {KEPT}"),
        ({"fails_later": XLA}, "failed (XLA is not to be had.). What was found is withdrawn"),
    ],
    ids=["slower", "no faster", "failed"],
)
def test_what_gains_nothing_in_the_end_is_withdrawn(write, verifies, later, told):
    out, path, variables = write(PacedTrials({XLA: 0.5}, **later), verifies=verifies)
    assert told in out
    assert "faster" not in out
    assert "What was found is withdrawn; the file changes nothing.\n" in path.read_text()
    assert resolve_config(yaml_path=path) == REHEARSED
    assert "# Nothing is to be set" in variables


@pytest.mark.soak
def test_a_rehearsal_is_configured_and_trains_with_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    small = [word for word in SMALL if word not in ("--num-steps", "5")]
    given = [*small, "--no-enable-xla", "--mixed-precision", "float32", "--num-workers", "0"]
    result = run_python([SCRIPT, "--verify", "--output", str(path), *given])
    assert result.returncode == 0, result.stderr[-4000:]
    assert re.search(r"IN FORCE with (these settings|the defaults), read back", result.stdout)
    rows = ("readers", "batches read ahead", "batches prepared ahead", "codes found", "memory of model device")
    for row in (*rows, *configure.VARIABLES):
        assert re.search(rf"^  {row} +\S", result.stdout, re.MULTILINE), row
    assert re.search(r"batches read ahead +none\b", result.stdout), "this process reads each when it is needed"
    assert re.search(r"weights on +/CPU:\d", result.stdout)
    assert re.search(r"compute precision +float32", result.stdout)
    plan = run_python(["train_main.py", "--config", str(path), "--print-plan"])
    assert plan.returncode == 0, plan.stderr
    assert "rehearsal on logical CPU devices" in plan.stdout
