"""`bash quick_fix_gpu_utilization.sh`: says what it did, and passes on what the diagnosis found."""

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
    parts = [line for line in result.stdout.splitlines() if line.startswith("== ")]
    assert parts == [
        "== 1/4 Prerequisites",
        "== 2/4 Diagnosis",
        "== 3/4 What to do",
        "== 4/4 Training, and watching it",
    ]
    assert "SOFTWARE" in result.stdout
    assert ("Nothing serious was found" if flags else "Start with issue 1") in result.stdout
    assert f"  python train_main.py --batch-size 2{' --rehearsal' if flags else ''}\n" in result.stdout
    assert "--html profile.html --trace profile.json --batch-size 2" in result.stdout


def test_a_mistake_in_the_flags_is_told_and_nothing_else_is_claimed():
    result = run_script("--bach-size", "2")
    assert result.returncode == 2
    assert "Did you mean --batch-size?" in result.stderr
    assert "4/4" not in result.stdout


def test_a_python_without_myxtts_is_told(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    result = run_script(PYTHON=str(fake))
    assert result.returncode == 2
    assert "cannot run MyXTTS" in result.stderr
    assert "2/4" not in result.stdout
