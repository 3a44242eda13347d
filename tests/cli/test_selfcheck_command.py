"""`myxtts selfcheck`: on cards (played by a stub of the driver's library), in rehearsal, and without either."""

import json
import subprocess
import sys

import pytest

from myxtts.cli import selfcheck
from myxtts.errors import CommandLineError
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import ROOT, clean_environ, run_python

COMMAND = ["-m", "myxtts.cli.main", "selfcheck"]


def run_selfcheck(*words, environ=None):
    return run_python([*COMMAND, *map(str, words)], environ)


def test_without_a_card_and_without_a_rehearsal_it_says_what_to_do(tmp_path):
    result = run_selfcheck("--out", tmp_path / "report.md", environ=clean_environ())
    assert result.returncode == 2
    assert "needs a GPU, but there is none" in result.stderr
    assert "--rehearsal" in result.stderr
    assert "myxtts diagnose" in result.stderr
    assert not (tmp_path / "report.md").exists(), "nothing was checked, so nothing is reported"


def test_the_driver_and_the_topology_of_two_cards_are_checked(tmp_path, make_machine):
    machine = make_machine(StubCard(0), StubCard(1), extra=["link 0 1 20", "activity 0 90000 350000 600 1980 50 0"])
    out = tmp_path / "report.md"
    result = run_selfcheck("--only", "driver", "--only", "topology", "--out", out, environ=machine.environ())
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed     driver" in result.stdout
    assert "GPU 0 - GPU 1: PXB" in result.stdout
    facts = {check["name"]: check["facts"] for check in json.loads(out.with_suffix(".json").read_text())["checks"]}
    assert facts["driver"]["cards"][0]["power_w"] == 90.0
    assert facts["driver"]["cards"][1]["power_w"] is None, "unknown is never 0"
    text = out.read_text()
    assert "2 passed" in text
    assert StubCard(0).uuid not in text


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
    assert selfcheck.run(["--list", "--quick"], "myxtts selfcheck") == 0
    said = capsys.readouterr().out
    assert "visible-reversed (needs two GPUs)\n    the same with the ids" in said
    assert "train-dual" not in said


@pytest.mark.parametrize("flags", [[], ["--open-ports"]])
def test_ports_are_opened_only_when_asked_for(tmp_path, monkeypatch, flags):
    given = []
    monkeypatch.setattr(selfcheck, "_check", lambda checks, situation, out: given.append(situation) or 0)
    selfcheck.run(["--rehearsal", "--out", str(tmp_path / "report.md"), *flags], "myxtts selfcheck")
    assert [situation.opens_ports for situation in given] == [bool(flags)]


def test_the_variable_rehearses_however_yes_is_spelt(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(selfcheck, "_check", lambda checks, situation, out: given.append(situation.rehearsal) or 0)
    monkeypatch.setenv("MYXTTS_REHEARSAL", "true")
    selfcheck.run(["--out", str(tmp_path / "report.md")], "myxtts selfcheck")
    assert given == [True]


def test_ids_are_given_together():
    with pytest.raises(CommandLineError, match="given together"):
        selfcheck.choose_devices(True, 0, None, "")


@pytest.mark.soak
def test_the_whole_list_can_be_rehearsed(tmp_path, record_property):
    out = tmp_path / "report.md"
    command = [sys.executable, *COMMAND, "--rehearsal", "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean_environ(), timeout=3600)
    assert result.returncode == 0, result.stdout
    checks = json.loads(out.with_suffix(".json").read_text())["checks"]
    assert {check["status"] for check in checks} == {"rehearsed"}
    assert len(checks) > 20
    record_property("summary", [result.stdout.partition("\n\n")[2].partition("\n\n")[0]])
