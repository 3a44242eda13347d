"""`myxtts selfcheck`: which checks run, that none ends another, how losses are judged, what is written, on cards and in rehearsal."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from myxtts.cli import selfcheck as command
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.devices.machine import find_bus_ids, is_same_bus_id
from myxtts.errors import CommandLineError
from myxtts.monitoring.metrics import MetricsLog
from myxtts.tuning import selfcheck
from myxtts.tuning.selfcheck import (
    CHECKS,
    Check,
    CheckFailedError,
    CheckOutcome,
    CheckStatus,
    Situation,
    format_report,
    run_check,
)
from tests.monitoring.runs import make_run_row, make_train_row
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import ROOT, clean_environ, run_python

COMMAND = ["-m", "myxtts.cli.main", "selfcheck"]
TWO = Situation(rehearsal=False, data_gpu=1, model_gpu=0, root="unused")
ONE = replace(TWO, data_gpu=0)
REHEARSAL = Situation(rehearsal=True, data_gpu=0, model_gpu=1, root="unused")


def train(name, losses, **facts):
    """A check whose process trains to these losses."""
    return Check(name, "it trains", "nowhere", settings={"losses": losses}, **facts)


def read_settings(check, situation):
    """Stands for a process: everything is as the check's settings say."""
    status = CheckStatus.REHEARSED if situation.rehearsal else CheckStatus.PASSED
    return CheckOutcome(check.name, "", status, "seen", facts=dict(check.settings))


def run(checks, situation, run_one=read_settings):
    return {outcome.name: outcome for outcome in selfcheck.run_checks(checks, situation, run_one)}


# What processes of checks do below.
def answer(situation, **facts):
    return f"{situation.cards} devices for {situation.check}", facts


def decline(situation):
    return "no network here", None


def refuse(situation):
    print("seen before the end", file=sys.stderr, flush=True)
    raise CheckFailedError("The card is upside down.")


def crash(situation):
    print("seen before the end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(situation):
    signal.pause()


def stumble(situation):
    raise ValueError("seen before the end")


def test_what_was_asked_for_brings_what_it_needs_which_comes_before_it():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(CHECKS):
        assert {check.needed} - {None} <= set(names[:number]), check.name
        assert not check.is_quick or not check.needed, "a quick check needs no training"
    again = selfcheck.select_checks(["deterministic-again"], is_quick=False)
    assert [check.name for check in again] == ["train-codec", "train-single", "deterministic", "deterministic-again"]
    assert all(check.is_quick for check in selfcheck.select_checks([], is_quick=True))
    assert selfcheck.select_checks([], is_quick=False) == list(CHECKS)
    with pytest.raises(CommandLineError, match="Did you mean train-dual"):
        selfcheck.select_checks(["train-duel"], is_quick=False)


def test_one_card_does_what_one_card_allows_and_lists_the_rest():
    checks = [Check("one", "", "x"), Check("two", "", "x", 2)]
    outcomes = run(checks, ONE)
    assert outcomes["one"].status is CheckStatus.PASSED
    assert (outcomes["two"].status, outcomes["two"].detail) == (CheckStatus.NOT_RUN, "needs two GPUs")
    assert run(checks, TWO)["two"].status is CheckStatus.PASSED
    assert run(checks, REHEARSAL)["two"].status is CheckStatus.REHEARSED


def test_a_failed_check_ends_no_other_but_those_that_need_its_files():
    def fail_first(check, situation):
        return CheckOutcome(check.name, "", CheckStatus.FAILED if check.name == "first" else CheckStatus.PASSED, "")

    checks = [Check("first", "", "x"), Check("needs", "", "x", after="first"), Check("other", "", "x")]
    outcomes = run(checks, ONE, fail_first)
    assert [each.status for each in outcomes.values()] == [CheckStatus.FAILED, CheckStatus.NOT_RUN, CheckStatus.PASSED]
    assert "first makes" in outcomes["needs"].detail


@pytest.mark.parametrize(
    ("losses", "situation", "status"),
    [
        ([3.0, 2.0], REHEARSAL, CheckStatus.REHEARSED),
        ([3.0, 2.0000001], REHEARSAL, CheckStatus.FAILED),
        ([3.0, 2.001], TWO, CheckStatus.PASSED),
        ([3.0, 2.02], TWO, CheckStatus.FAILED),
        ([3.0, math.nan], TWO, CheckStatus.FAILED),
        ([math.nan, 2.0], TWO, CheckStatus.FAILED),
        ([3.0], TWO, CheckStatus.FAILED),
    ],
)
def test_losses_are_judged_by_what_the_devices_allow(losses, situation, status):
    like = {"like": "single", "tolerance": (1e-3, 0.0)}
    outcome = run([train("single", [3.0, 2.0]), train("dual", losses, **like)], situation)["dual"]
    assert outcome.status is status, outcome.detail
    assert "single" in outcome.detail


def test_only_the_losses_that_must_agree_are_compared():
    like = {"like": "single", "tolerance": (0.05, 0.05), "compared": 1}
    checks = [train("single", [3.0, 2.0]), train("skips", [3.1, 3.1], **like), train("wrong", [4.0, 2.0], **like)]
    outcomes = run(checks, TWO)
    assert outcomes["skips"].status is CheckStatus.PASSED
    assert "the first 1 of the losses as in single" in outcomes["skips"].detail
    assert outcomes["wrong"].status is CheckStatus.FAILED


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("refuse", "The card is upside down."),
        ("crash", "its process was killed by SIGSEGV"),
        ("hang", "it was not done after 1 s"),
        ("stumble", "its process ended with exit code 1: ValueError: seen before the end"),
    ],
)
def test_a_process_that_refuses_crashes_hangs_or_stumbles_is_told_with_its_last_words(function, said, monkeypatch):
    monkeypatch.setattr(selfcheck, "TRAINING_LIMIT_S", 1 if function == "hang" else 60)
    outcome = run_check(Check("bad", "", f"{__name__}:{function}"), REHEARSAL)
    assert outcome.status is CheckStatus.FAILED
    assert said in outcome.detail
    # One that hangs says where it is.
    assert ("in hang" if function == "hang" else "seen before the end") in outcome.last_words


def test_a_process_is_given_the_situation_and_the_settings_and_may_decline():
    good = Check("good", "", f"{__name__}:answer", settings={"depth": 3})
    outcomes = run([good, Check("closed", "", f"{__name__}:decline")], REHEARSAL, run_check)
    seen = CheckOutcome("good", "", CheckStatus.REHEARSED, "2 devices for good", outcomes["good"].seconds, {"depth": 3})
    assert outcomes["good"] == seen
    assert outcomes["closed"] == CheckOutcome("closed", "", CheckStatus.NOT_RUN, "no network here")


def test_bus_ids_are_found_in_what_tensorflow_says_of_a_device():
    said = "device: 0, name: NVIDIA X, pci bus id: 0000:0a:00.0, compute capability: 8.6"
    assert find_bus_ids([said, "device: 1"]) == ["0000:0a:00.0", "unknown"]
    assert is_same_bus_id("00000000:0A:00.0", "0000:0a:00.0")
    assert not is_same_bus_id("00000000:0A:00.0", "0001:0a:00.0")


FAILED = CheckOutcome("limit", "it holds", CheckStatus.FAILED, "a | b", 1.5, {"x": math.inf}, "last ``` words")
PASSED = CheckOutcome("order", "it counts", CheckStatus.PASSED, "word " * 40, 61.0, {"y": None})


def test_the_report_says_what_was_seen():
    end, page, facts = format_report([PASSED, FAILED], rehearsal=False)
    assert end.startswith("1 passed, 1 FAILED in 1 min 02 s. Failed: limit.")
    assert "**1 passed, 1 FAILED** in 1 min 02 s. Failed: limit." in page
    assert "| limit | FAILED | 1.5 s | it holds: a \\| b |" in page
    assert "## limit: what its process wrote last\n\n````\nlast ``` words" in page
    checks = json.loads(facts)["checks"]
    assert (checks[0]["facts"], checks[1]["facts"]) == ({"y": None}, {"x": "inf"})
    assert checks[1]["status"] == "FAILED"


def test_lines_fit_80_columns_and_a_rehearsal_claims_nothing():
    assert max(map(len, selfcheck.format_outcome(PASSED).splitlines())) <= 80
    for rehearsal, said in ((True, "says nothing about cards"), (False, "post the report all the same")):
        end = format_report([PASSED], rehearsal=rehearsal)[0]
        assert said in " ".join(end.split())
        assert max(map(len, end.splitlines())) <= 80


@pytest.fixture
def situation(tmp_path):
    return replace(REHEARSAL, root=str(tmp_path), check="mine")


def test_every_check_that_trains_reads_one_corpus_that_tensorflow_can_read_too(situation):
    from myxtts.tuning.selfcheck_work import make_config

    plain = make_config(situation)
    # What other checks try is off, whatever the default.
    others = (plain.data.use_tf_native_loading, plain.data.enable_xla, plain.model.enable_gradient_checkpointing)
    assert (*others, plain.data.mixed_precision, plain.data.cache) == (False, False, False, "float32", "off")
    # Which clips are set apart follows from their paths: other files would be another run.
    assert plain.data.train_data == make_config(replace(situation, check="other")).data.train_data
    first = sorted((Path(plain.data.train_data) / "wavs").iterdir())[0]
    info = soundfile.info(first)
    assert (info.format, info.subtype, info.samplerate) == ("WAV", "PCM_16", 22050)
    original = next(demo_corpus_path().glob(f"wavs/{first.stem}.*"))
    np.testing.assert_array_equal(soundfile.read(first)[0], soundfile.read(original)[0])
    decoder = make_config(situation, training={"stage": "decoder"}).training
    assert (decoder.init_from, decoder.codec) == (f"{situation.root}/train-single", None)


@pytest.fixture
def train_by_command(monkeypatch):
    """Stands for `myxtts train`: says a line, does something in the run's folder, and ends with a code."""
    from myxtts.tuning import selfcheck_work

    asked = {}

    def make(code, act=lambda folder: None):
        class Stub:
            def __init__(self, commands, tell):
                (command,) = commands
                path = Path(command.words[command.words.index("--config") + 1])
                asked.update(yaml.safe_load(path.read_text()), words=command.words)
                tell(0, "what it said")

            def run(self):
                act(Path(asked["training"]["checkpoint_dir"]))
                return [code]

        monkeypatch.setattr(selfcheck_work, "ProcessGroup", Stub)
        monkeypatch.setattr(selfcheck_work, "has_private_network", lambda: True)
        return selfcheck_work, asked

    return make


def write_run(folder, losses=(3.0, 2.0), workers=2):
    (folder / f"worker-{workers - 1}").mkdir(parents=True, exist_ok=True)
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write(make_run_row())
        log.write(make_train_row(len(losses), steps=len(losses), losses=losses))


def test_both_devices_train_by_the_command_a_user_gives_where_their_ports_are_closed_or_may_be_open(
    situation, train_by_command, monkeypatch
):
    work, asked = train_by_command(0, write_run)
    detail, facts = work.train_parallel(situation)
    assert asked["training"]["model_gpus"] == "1,0"
    assert "--open-ports" not in asked["words"]
    assert facts == {"losses": [3.0, 2.0], "how": "two workers"}
    assert "two workers" in detail
    asked.clear()
    monkeypatch.setattr(work, "has_private_network", lambda: False)
    detail, facts = work.train_parallel(situation)
    assert "--open-ports" in detail
    assert facts is None
    assert not asked, "nothing was started"
    assert work.train_parallel(replace(situation, opens_ports=True, check="opened"))[1] is not None
    assert "--open-ports" in asked["words"]


@pytest.mark.parametrize(
    ("code", "act", "said"),
    [
        (-9, lambda folder: None, "ended with exit code -9:\nwhat it said"),
        (0, lambda folder: write_run(folder, workers=1), "Two workers were to train, but only one did"),
        (0, lambda folder: write_run(folder, (2.0, 3.0)), "The loss must fall"),
        (0, lambda folder: write_run(folder, (2.0, math.nan)), "Losses must be finite numbers"),
    ],
)
def test_a_command_that_does_not_do_what_it_must_fails_the_check(situation, train_by_command, code, act, said):
    work, _ = train_by_command(code, act)
    with pytest.raises(CheckFailedError, match=re.escape(said)):
        work.train_parallel(situation)


def run_selfcheck(*words, environ=None):
    return run_python([*COMMAND, *map(str, words)], environ)


def test_without_a_card_and_without_a_rehearsal_it_says_what_to_do(tmp_path):
    result = run_selfcheck("--out", tmp_path / "report.md", environ=clean_environ())
    assert result.returncode == 2
    for said in ("needs a GPU, but there is none", "--rehearsal", "myxtts diagnose"):
        assert said in result.stderr
    assert not (tmp_path / "report.md").exists(), "nothing was checked, so nothing is reported"


def test_the_driver_and_the_topology_of_two_cards_are_checked(tmp_path, make_machine):
    machine = make_machine(StubCard(0), StubCard(1), extra=["link 0 1 20", "activity 0 90000 350000 600 1980 50 0"])
    out = tmp_path / "report.md"
    environ = {**machine.environ(), "MY_TOKEN": "PXBsecret", "NAME_OF_LINK_PASSWORD": "GPU 0 - GPU 1"}
    result = run_selfcheck("--only", "driver", "--only", "topology", "--out", out, environ=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed     driver" in result.stdout
    assert "GPU 0 - GPU 1: PXB" in result.stdout
    facts = {check["name"]: check["facts"] for check in json.loads(out.with_suffix(".json").read_text())["checks"]}
    assert facts["driver"]["cards"][0]["power_w"] == 90.0
    assert facts["driver"]["cards"][1]["power_w"] is None, "unknown is never 0"
    text = out.read_text()
    assert "2 passed" in text
    assert StubCard(0).uuid not in text
    assert "<secret>: PXB" in text, "what is secret is taken out"


def test_one_card_leaves_what_needs_two(tmp_path, make_machine):
    machine = make_machine(StubCard(0))
    result = run_selfcheck("--only", "topology", "--out", tmp_path / "report.md", environ=machine.environ())
    assert result.returncode == 0
    assert "not run    topology\n           needs two GPUs" in result.stdout


def test_a_lost_card_fails_the_check_and_the_exit_code_says_so(tmp_path, make_machine):
    machine = make_machine(StubCard(0), StubCard(1, state=GPU_IS_LOST))
    result = run_selfcheck("--only", "driver", "--out", tmp_path / "report.md", environ=machine.environ())
    assert result.returncode == 1
    assert "FAILED     driver" in result.stdout
    assert "Failed: driver." in result.stdout


def test_a_rehearsal_of_the_order_of_devices(tmp_path):
    out = tmp_path / "report.md"
    result = run_selfcheck("--rehearsal", "--only", "order", "--out", out)
    assert result.returncode == 0, result.stdout
    assert "rehearsed  order" in result.stdout
    assert "/CPU:0, /CPU:1, /CPU:2" in result.stdout
    assert "rehearsal on logical CPU devices" in out.read_text()


def test_the_list_is_shown_and_nothing_is_run(capsys):
    assert command.run(["--list", "--quick"], "myxtts selfcheck") == 0
    said = capsys.readouterr().out
    assert "visible-reversed (needs two GPUs)\n    the same with the ids" in said
    assert "train-dual" not in said


@pytest.mark.parametrize("flags", [[], ["--open-ports"]])
def test_ports_are_opened_only_when_asked_for_and_the_variable_rehearses(tmp_path, monkeypatch, flags):
    given = []
    monkeypatch.setattr(command, "_check", lambda checks, situation, out: given.append(situation) or 0)
    monkeypatch.setenv("MYXTTS_REHEARSAL", "true")
    command.run(["--out", str(tmp_path / "report.md"), *flags], "myxtts selfcheck")
    assert [(each.opens_ports, each.rehearsal) for each in given] == [(bool(flags), True)]


def test_ids_are_given_together():
    with pytest.raises(CommandLineError, match="given together"):
        command.choose_devices(True, 0, None, "")


@pytest.mark.soak
def test_the_whole_list_can_be_rehearsed(tmp_path, record_property):
    out = tmp_path / "report.md"
    words = [sys.executable, *COMMAND, "--rehearsal", "--out", str(out)]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=clean_environ(), timeout=3600)
    assert result.returncode == 0, result.stdout
    checks = json.loads(out.with_suffix(".json").read_text())["checks"]
    assert {check["status"] for check in checks} == {"rehearsed"}
    assert len(checks) > 20
    record_property("summary", [result.stdout.partition("\n\n")[2].partition("\n\n")[0]])
