"""`myxtts selfcheck`: which checks run, that none ends another, how losses are judged, what is written, on cards and in rehearsal."""

import json
import math
import subprocess
import sys

import pytest

from myxtts.tuning.selfcheck import (
    CHECKS,
    Check,
    CheckOutcome,
    CheckStatus,
    Situation,
    format_report,
    run_checks,
    select_checks,
)
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import ROOT, clean_environ, run_python

COMMAND = ["-m", "myxtts.cli.main", "selfcheck"]
TWO = Situation(rehearsal=False, data_gpu=1, model_gpu=0, root="unused")
REHEARSAL = Situation(rehearsal=True, data_gpu=0, model_gpu=1, root="unused")


def train(name, losses, **facts):
    """A check whose process trains to these losses."""
    return Check(name, "it trains", settings={"losses": losses}, **facts)


def read_settings(check, situation):
    """Stands for a process: everything is as the check's settings say."""
    status = check.settings.get("status", "rehearsed" if situation.rehearsal else "passed")
    return CheckOutcome(check, CheckStatus(status), "seen", facts=dict(check.settings))


def run(checks, situation):
    return {outcome.check.name: outcome for outcome in run_checks(checks, situation, read_settings)}


def test_what_was_asked_for_brings_what_it_needs_which_comes_before_it():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(CHECKS):
        assert {check.after} - {None} <= set(names[:number]), check.name
    again = select_checks(["deterministic-again"], is_quick=False)
    assert [check.name for check in again] == ["train-codec", "train-single", "deterministic", "deterministic-again"]
    quick = select_checks([], is_quick=True)
    assert [check.name for check in quick] == ["driver", "visible", "visible-reversed", "limit"]
    assert select_checks([], is_quick=False) == list(CHECKS)


def test_a_failed_check_ends_no_other_but_those_that_need_its_files():
    failing = Check("first", "", settings={"status": "FAILED"})
    checks = [failing, Check("needs", "", after="first"), Check("other", "")]
    outcomes = run(checks, TWO)
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
    like = {"after": "single", "tolerance": (1e-3, 0.0)}
    outcome = run([train("single", [3.0, 2.0]), train("dual", losses, **like)], situation)["dual"]
    assert outcome.status is status, outcome.detail
    assert "single" in outcome.detail


def read_figures(page):
    """By check, from the end of a report."""
    lines = page.partition("## Figures")[2].split("```")[1].removeprefix("json").strip().splitlines()
    return {name: facts for line in lines for name, facts in json.loads(line).items()}


WORDS = "last ``` words"
FAILED = CheckOutcome(Check("limit", "it holds"), CheckStatus.FAILED, "a | b", 1.5, {"x": math.inf}, WORDS)
PASSED = CheckOutcome(Check("visible", "it counts"), CheckStatus.PASSED, "word " * 40, 61.0, {"y": None})


def test_the_report_says_what_was_seen_and_a_rehearsal_claims_nothing():
    end, page = format_report([PASSED, FAILED], rehearsal=False)
    assert end.startswith("1 passed, 1 FAILED in 1 min 02 s. Failed: limit.")
    assert "1 passed, 1 FAILED in 1 min 02 s. Failed: limit." in page
    assert "| limit | FAILED | 1.5 s | it holds: a \\| b |" in page
    assert "## limit: what its process wrote last\n\n````\nlast ``` words" in page
    assert read_figures(page) == {"visible": {"y": None}, "limit": {"x": "inf"}}
    for rehearsal, said in ((True, "says nothing about cards"), (False, "post the report all the same")):
        assert said in format_report([PASSED], rehearsal=rehearsal)[0]


def run_selfcheck(*words, environ=None):
    return run_python([*COMMAND, *map(str, words)], environ)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["needs a GPU, but there is none", "--rehearsal", "myxtts diagnose"]),
        (["--data-gpu", "0"], ["given together"]),
        (["--only", "train-duel"], ["Did you mean train-dual?"]),
    ],
)
def test_what_cannot_be_checked_is_refused_and_not_reported(tmp_path, words, said):
    result = run_selfcheck(*words, "--out", tmp_path / "report.md", environ=clean_environ())
    assert result.returncode == 2
    assert all(each in result.stderr for each in said)
    assert not (tmp_path / "report.md").exists()


def test_the_driver_is_checked_and_one_card_leaves_what_needs_two(tmp_path, make_machine):
    machine = make_machine(StubCard(0), extra=["activity 0 90000 350000 600 1980 50 0"])
    out = tmp_path / "report.md"
    environ = {**machine.environ(), "MY_TOKEN": "readings", "MYXTTS_REHEARSAL": "0"}
    result = run_selfcheck("--only", "driver", "--only", "visible-reversed", "--out", out, environ=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed     driver" in result.stdout
    assert "not run    visible-reversed\n           needs two GPUs" in result.stdout
    assert max(map(len, result.stdout.partition("\nReport")[0].splitlines())) <= 80
    text = out.read_text()
    (card,) = read_figures(text)["driver"]["cards"]
    assert card["power_w"] == 90.0
    assert "1 passed, 1 not run" in text
    assert StubCard(0).uuid not in text
    assert "the driver's <secret> of the cards" in text, "what is secret is taken out"


def test_a_lost_card_fails_the_check_and_the_exit_code_says_so(tmp_path, make_machine):
    machine = make_machine(StubCard(0), StubCard(1, state=GPU_IS_LOST))
    result = run_selfcheck("--only", "driver", "--out", tmp_path / "report.md", environ=machine.environ())
    assert result.returncode == 1
    assert "FAILED     driver" in result.stdout
    assert "Failed: driver." in result.stdout


def test_the_variable_rehearses_and_memory_is_limited(tmp_path):
    out = tmp_path / "report.md"
    result = run_selfcheck("--only", "limit", "--out", out, environ=clean_environ(MYXTTS_REHEARSAL="true"))
    assert result.returncode == 0, result.stdout
    assert "rehearsed  limit" in result.stdout
    assert "rehearsal on logical CPU devices" in out.read_text()


def test_the_list_is_shown_and_nothing_is_run():
    said = run_selfcheck("--list", "--quick").stdout
    assert "visible-reversed (needs two GPUs)\n    the same with the ids" in said
    assert "train-dual" not in said


@pytest.mark.soak
def test_the_whole_list_can_be_rehearsed(tmp_path, record_property):
    out = tmp_path / "report.md"
    words = [sys.executable, *COMMAND, "--rehearsal", "--out", str(out)]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=clean_environ(), timeout=3600)
    assert result.returncode == 0, result.stdout
    assert out.read_text().count("| rehearsed |") == len(CHECKS)
    record_property("summary", [result.stdout.partition("\n\n")[2].partition("\n\n")[0]])
