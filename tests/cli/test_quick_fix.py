"""`bash quick_fix_gpu_utilization.sh`: says what it did, and passes on what the diagnosis found."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, clean_environ

SCRIPT = ROOT / "quick_fix_gpu_utilization.sh"
BASH = shutil.which("bash")


def run_script(*words, **environ):
    variables = {**clean_environ(), "PYTHON": sys.executable, **environ}
    return subprocess.run([BASH, SCRIPT, *words], capture_output=True, text=True, env=variables, timeout=300)


@pytest.mark.parametrize("flags", [(), ("--rehearsal",)])
def test_it_diagnoses_and_names_the_next_commands(flags, make_machine):
    environ = make_machine(extra=["init 12"]).environ()
    result = run_script("--skip-speed-test", "--batch-size", "2", *flags, **environ)
    assert result.returncode == (0 if flags else 1), result.stderr
    assert re.findall(r"^== (\d)/5 \w", result.stdout, re.MULTILINE) == list("12345")
    assert "SOFTWARE" in result.stdout
    assert ("Nothing serious was found" if flags else "Start with issue 1") in result.stdout
    assert "list of the diagnosis" not in result.stdout, "there may be none"
    assert f"  python train_main.py --batch-size 2{' --rehearsal' if flags else ''}\n" in result.stdout
    assert "--html profile.html --trace profile.json --batch-size 2" in result.stdout
    assert "Not measured, because of --skip-speed-test" in result.stdout


@pytest.mark.parametrize(("configured", "train"), [(0, "source myxtts_tuned.env.sh && "), (1, "")])
def test_settings_that_were_measured_lead_to_their_own_command(configured, train, tmp_path):
    """Played by a program that notes what it is asked for."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$1" in *configure*) exit {configured};; esac\n')
    fake.chmod(0o755)
    result = run_script("--batch-size", "a b", PYTHON=str(fake))
    assert result.returncode == 0, result.stderr
    (asked,) = [line for line in (tmp_path / "asked").read_text().splitlines() if "configure" in line]
    assert asked.endswith("--verify --batch-size a b")
    config = "--config myxtts_tuned.yaml" if configured == 0 else r"--batch-size a\ b"
    assert f"\n  {train}python train_main.py {config}\n" in result.stdout
    assert ("No settings were found" in result.stderr) == (configured == 1)


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_all_that_is_done(word):
    result = run_script("--rehearsal", word, PYTHON="/nowhere")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Finds out why the GPU is not busy")
    assert "[--config FILE] [--skip-speed-test] [flags]" in result.stdout
    assert result.stdout.endswith("2 it could not be made.\n")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_mistake_in_the_flags_is_told_and_nothing_else_is_claimed():
    result = run_script("--bach-size", "2")
    assert result.returncode == 2
    assert "Did you mean --batch-size?" in result.stderr
    assert "5/5" not in result.stdout


def test_a_python_without_myxtts_is_told():
    result = run_script(PYTHON="false")
    assert result.returncode == 2
    assert "cannot run MyXTTS" in result.stderr
    assert "2/5" not in result.stdout
