"""The self-check: which checks run, that none ends another, how losses are judged, and what is written."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from myxtts.data.demo_corpus import demo_corpus_path
from myxtts.devices.plan import Mode
from myxtts.devices.topology import find_bus_ids, is_same_bus_id
from myxtts.errors import CommandLineError
from myxtts.monitoring.hardware_facts import read_hardware
from myxtts.monitoring.metrics_log import MetricsLog
from myxtts.monitoring.redaction import Redactor
from myxtts.monitoring.software_facts import read_software
from myxtts.training.run_record import RunRecord, write_record
from myxtts.training.selfcheck import command_work, runner
from myxtts.training.selfcheck.checks import CHECKS, Check, Tolerance, select_checks
from myxtts.training.selfcheck.outcome import Outcome, Status
from myxtts.training.selfcheck.report import SelfcheckReport, format_end, format_json, format_markdown, format_outcome
from myxtts.training.selfcheck.runner import Answer, ask_process, measure_difference, run_checks
from myxtts.training.selfcheck.situation import Situation, plan_mode
from myxtts.training.selfcheck.small_run import make_config
from myxtts.training.selfcheck.work import CheckFailedError
from tests.monitoring.runs import make_run_row, make_train_row

WORK = "tests.training.selfcheck_work"
TWO = Situation(rehearsal=False, data_gpu=1, model_gpu=0, folder="unused")
ONE = Situation(rehearsal=False, data_gpu=0, model_gpu=0, folder="unused")
REHEARSAL = Situation(rehearsal=True, data_gpu=0, model_gpu=1, folder="unused")


def train(name, losses, **facts):
    """A check whose process trains to these losses."""
    return Check(name, "it trains", "nowhere", settings={"losses": losses}, **facts)


def read_settings(check, situation):
    """Stands for a process: everything is as the check's settings say."""
    return Answer("seen", dict(check.settings), is_good=True)


def run(checks, situation, ask=read_settings):
    return {outcome.name: outcome for outcome in run_checks(checks, situation, ask)}


def test_every_name_is_used_once_and_what_a_check_needs_comes_before_it():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(CHECKS):
        assert set(check.after) <= set(names[:number]), check.name
        assert check.like is None or check.like in check.after, check.name
        assert not check.is_quick or not check.after, "a quick check needs no training"


def test_what_was_asked_for_brings_what_it_needs():
    names = [check.name for check in select_checks(["producer-killed"], is_quick=False)]
    assert names == ["train-codec", "train-single", "producer-killed"]
    quick = select_checks([], is_quick=True)
    assert quick
    assert all(check.is_quick for check in quick)
    assert select_checks([], is_quick=False) == list(CHECKS)


def test_a_check_that_is_none_names_the_nearest():
    with pytest.raises(CommandLineError, match="Did you mean train-dual"):
        select_checks(["train-duel"], is_quick=False)


def test_one_card_does_what_one_card_allows_and_lists_the_rest():
    outcomes = run([Check("one", "", "x"), Check("two", "", "x", 2)], ONE)
    assert outcomes["one"].status is Status.PASSED
    assert outcomes["two"].status is Status.NOT_RUN
    assert outcomes["two"].detail == "needs two GPUs"
    assert run([Check("two", "", "x", 2)], TWO)["two"].status is Status.PASSED
    assert run([Check("two", "", "x", 2)], REHEARSAL)["two"].status is Status.REHEARSED


def test_a_failed_check_ends_no_other_but_those_that_need_its_files():
    def ask(check, situation):
        return Answer("broken", {}, is_good=check.name != "first", last_words="words")

    outcomes = run(
        [Check("first", "", "x"), Check("needs", "", "x", after=("first",)), Check("other", "", "x")], ONE, ask
    )
    assert outcomes["first"].status is Status.FAILED
    assert outcomes["first"].last_words == "words"
    assert outcomes["needs"].status is Status.NOT_RUN
    assert "first makes" in outcomes["needs"].detail
    assert outcomes["other"].status is Status.PASSED


@pytest.mark.parametrize(
    ("losses", "situation", "status"),
    [
        ([3.0, 2.0], REHEARSAL, Status.REHEARSED),
        ([3.0, 2.0000001], REHEARSAL, Status.FAILED),
        ([3.0, 2.001], TWO, Status.PASSED),
        ([3.0, 2.02], TWO, Status.FAILED),
        ([3.0, math.nan], TWO, Status.FAILED),
        ([math.nan, 2.0], TWO, Status.FAILED),
        ([3.0], TWO, Status.FAILED),
    ],
)
def test_losses_are_judged_by_what_the_devices_allow(losses, situation, status):
    tolerance = Tolerance(on_cards=1e-3, in_rehearsal=0.0)
    checks = [train("single", [3.0, 2.0]), train("dual", losses, after=("single",), like="single", tolerance=tolerance)]
    outcome = run(checks, situation)["dual"]
    assert outcome.status is status, outcome.detail
    assert "single" in outcome.detail


def test_only_the_losses_that_must_agree_are_compared():
    tolerance = Tolerance(0.05, 0.05)
    like = {"after": ("single",), "like": "single", "tolerance": tolerance, "compared": 1}
    checks = [train("single", [3.0, 2.0]), train("skips", [3.1, 3.1], **like), train("wrong", [4.0, 2.0], **like)]
    outcomes = run(checks, TWO)
    assert outcomes["skips"].status is Status.PASSED
    assert "the first 1 of the losses as in single" in outcomes["skips"].detail
    assert outcomes["wrong"].status is Status.FAILED


def test_a_difference_that_is_no_number_is_found_wherever_it_stands():
    assert math.isnan(measure_difference([1.0, math.nan, 5.0], [1.0, 1.0, 1.0]))
    assert measure_difference([1.0, 3.0], [1.0, 2.0]) == 0.5
    assert measure_difference([], []) == 0.0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("refuse", "The card is upside down."),
        ("crash", "its process was killed by SIGSEGV"),
        ("hang", "it was not done after 2 s"),
        ("stumble", "its process ended with exit code 1: ValueError: seen before the end"),
    ],
)
def test_a_process_that_refuses_crashes_hangs_or_stumbles_is_told_with_its_last_words(function, said):
    check = Check("bad", "", f"{WORK}:{function}", limit_s=2 if function == "hang" else 60)
    answer = ask_process(check, REHEARSAL)
    assert not answer.is_good
    assert said in answer.detail
    # How far a process that hangs has come by then is not known.
    assert function == "hang" or "seen before the end" in answer.last_words


def test_loading_has_its_own_limit(monkeypatch):
    monkeypatch.setattr(runner, "IMPORT_S", 0.01)
    answer = ask_process(Check("slow", "", f"{WORK}:answer", limit_s=60), REHEARSAL)
    assert answer.detail == "its process had not loaded its code after 0 s"
    assert not answer.is_good


def test_a_process_is_given_the_situation_and_the_settings():
    answer = ask_process(Check("good", "", f"{WORK}:answer", settings={"depth": 3}, limit_s=60), REHEARSAL)
    assert answer == Answer("2 devices", {"depth": 3}, is_good=True)


@pytest.mark.parametrize(("mode", "limit"), [("single", None), ("dual", None), ("isolated", 2048), ("split", 2048)])
def test_every_mode_can_be_planned_in_a_rehearsal(mode, limit):
    plan = plan_mode(REHEARSAL, Mode(mode))
    assert plan.mode == mode
    assert plan.rehearsal
    assert getattr(plan.data.memory, "mib", None) == limit


def test_bus_ids_are_found_in_what_tensorflow_says_of_a_device():
    said = "device: 0, name: NVIDIA X, pci bus id: 0000:0a:00.0, compute capability: 8.6"
    assert find_bus_ids([said, "device: 1"]) == ["0000:0a:00.0", "unknown"]
    assert is_same_bus_id("00000000:0A:00.0", "0000:0a:00.0")
    assert not is_same_bus_id("00000000:0A:00.0", "0001:0a:00.0")
    assert not is_same_bus_id("00000000:0A:00.0", "0000:0b:00.0")


def make_report(*outcomes, rehearsal=False):
    return SelfcheckReport("now", rehearsal, read_hardware(Path.cwd()), read_software(), outcomes)


FAILED = Outcome(
    "limit", "it holds", Status.FAILED, "a | b at secret-value", 1.5, {"x": math.inf}, "last words of anna"
)
PASSED = Outcome("order", "it counts", Status.PASSED, "word " * 40, 61.0, {"y": None})


def test_the_report_to_post_says_what_was_seen_and_nothing_private():
    report = make_report(PASSED, FAILED)
    redactor = Redactor(user="anna", secrets=("secret-value",))
    text = format_markdown(report, redactor)
    assert "**1 passed, 1 FAILED** in 1 min 02 s. Failed: limit." in text
    assert "| limit | FAILED | 1.5 s | it holds: a \\| b at <secret> |" in text
    assert "last words of <user>" in text
    content = json.loads(format_json(report, redactor))
    assert content["checks"][1]["status"] == "FAILED"
    assert content["checks"][1]["facts"] == {"x": "inf"}
    for private in ("anna", "secret-value"):
        assert private not in text + json.dumps(content)


def test_lines_fit_80_columns_and_a_rehearsal_claims_nothing():
    assert max(map(len, format_outcome(PASSED).splitlines())) <= 80
    assert "says nothing about cards" in " ".join(format_end(make_report(PASSED, rehearsal=True)).split())
    assert "post the report all the same" in " ".join(format_end(make_report(PASSED)).split())


def make_situation(folder):
    return Situation(rehearsal=True, data_gpu=0, model_gpu=1, folder=str(folder))


def test_every_check_that_trains_reads_one_corpus_that_tensorflow_can_read_too(tmp_path):
    situation = make_situation(tmp_path)
    plain, native = make_config(situation, "train-single"), make_config(situation, "train-native", is_native=True)
    # Which clips are set apart follows from their paths: other files would be another run.
    assert plain.data.train_data == native.data.train_data
    corpus = Path(plain.data.train_data)
    first = sorted((corpus / "wavs").iterdir())[0]
    info = soundfile.info(first)
    assert (info.format, info.subtype, info.samplerate) == ("WAV", "PCM_16", 22050)
    original = next(demo_corpus_path().glob(f"wavs/{first.stem}.*"))
    np.testing.assert_array_equal(soundfile.read(first)[0], soundfile.read(original)[0])
    assert not list(tmp_path.glob("*.new"))


def test_a_decoder_is_trained_for_the_gpt_that_was_trained_before(tmp_path):
    config = make_config(make_situation(tmp_path), "train-decoder", stage="decoder")
    assert config.training.init_from == str(tmp_path / "train-single")
    assert config.training.codec is None


@pytest.fixture
def train_by_command(monkeypatch):
    """Stands for `myxtts train`: says a line, does something in the run's folder, and ends with a code."""
    asked = {}

    def make(code, act=lambda folder: None):
        class Stub:
            def __init__(self, commands, tell):
                (command,) = commands
                asked.update(yaml.safe_load(Path(command.words[-1]).read_text()), words=command.words)
                tell(0, "what it said")

            def run(self):
                act(Path(asked["training"]["checkpoint_dir"]))
                return [code]

        monkeypatch.setattr(command_work, "ProcessGroup", Stub)
        monkeypatch.setattr(command_work, "has_private_network", lambda: True)
        return asked

    return make


def write_run(folder, losses=(3.0, 2.0), **record):
    (folder / "worker-1").mkdir(parents=True)
    write_record(folder, RunRecord("gpt", {}, (), **record))
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write(make_run_row())
        log.write(make_train_row(len(losses), steps=len(losses), losses=losses))


def test_both_devices_train_by_the_command_a_user_gives(tmp_path, train_by_command):
    asked = train_by_command(0, write_run)
    seen = command_work.train_parallel(make_situation(tmp_path), name="train-parallel")
    assert asked["training"]["model_gpus"] == "1,0"
    assert "--open-ports" not in asked["words"]
    assert seen.facts["losses"] == [3.0, 2.0]
    assert "two workers" in seen.detail


def test_without_a_network_of_their_own_workers_are_not_started_unless_ports_may_be_open(
    tmp_path, train_by_command, monkeypatch
):
    asked = train_by_command(0, write_run)
    monkeypatch.setattr(command_work, "has_private_network", lambda: False)
    situation = make_situation(tmp_path)
    seen = command_work.train_parallel(situation, name="train-parallel")
    assert not seen.is_done
    assert "--open-ports" in seen.detail
    assert not asked, "nothing was started"
    opened = command_work.train_parallel(replace(situation, opens_ports=True), name="train-parallel")
    assert opened.is_done
    assert "--open-ports" in asked["words"]


def test_a_check_that_the_machine_does_not_allow_is_listed_and_fails_nothing():
    answer = ask_process(Check("closed", "", f"{WORK}:decline", limit_s=60), REHEARSAL)
    outcome = run([Check("closed", "", "x")], REHEARSAL, ask=lambda check, situation: answer)["closed"]
    assert (outcome.status, outcome.detail) == (Status.NOT_RUN, "no network here")


def test_a_mode_that_was_chosen_is_told(tmp_path, train_by_command):
    asked = train_by_command(0, lambda folder: write_run(folder, choice={"layout": "dual"}))
    seen = command_work.train_auto(make_situation(tmp_path), name="train-auto")
    assert asked["training"]["mode"] == "auto"
    assert "it chose the dual mode" in seen.detail


@pytest.mark.parametrize(
    ("check", "code", "act", "said"),
    [
        ("train_auto", 1, lambda folder: None, "ended with exit code 1:\nwhat it said"),
        ("train_auto", 0, write_run, "A mode was to be chosen and kept with the run"),
        (
            "train_auto",
            0,
            lambda folder: write_run(folder, (2.0, 3.0), choice={"layout": "dual"}),
            "The loss must fall",
        ),
        ("train_parallel", -9, lambda folder: None, "ended with exit code -9"),
    ],
)
def test_a_command_that_does_not_do_what_it_must_fails_the_check(tmp_path, train_by_command, check, code, act, said):
    train_by_command(code, act)
    with pytest.raises(CheckFailedError, match=re.escape(said)):
        getattr(command_work, check)(make_situation(tmp_path), name="x")
