"""The examples, run as they are but shorter."""

import subprocess

import pytest

from tests.support.processes import ROOT, clean_environ, run_python
from tests.support.tiny_run import TinyRun

SHORT = ("--codec-steps", "2", "--max-steps", "3")


@pytest.mark.soak
def test_the_python_example_trains_and_says_the_second_time_that_it_is_done(tmp_path):
    words = ["examples/memory_isolated_training.py", *SHORT, "--checkpoint-dir", str(tmp_path / "run")]
    first = run_python(words)
    assert first.returncode == 0, first.stderr[-6000:]
    assert "rehearsing on the CPU" in first.stderr
    assert "3 updates in" in first.stderr
    assert [step for step, _ in TinyRun.at(tmp_path / "run").losses] == [1, 2, 3]
    second = run_python(words)
    assert second.returncode == 0, second.stderr[-6000:]
    assert "is finished: 3 updates are done" in second.stderr


@pytest.mark.soak
def test_the_shell_example_shows_its_plan_and_trains(tmp_path):
    words = ["bash", f"{ROOT}/examples/gpu_pipeline_example.sh", *SHORT, "--checkpoint-dir", str(tmp_path / "run")]
    result = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=clean_environ(), timeout=600)
    assert result.returncode == 0, result.stderr[-6000:]
    assert "rehearsing on the CPU" in result.stdout
    assert result.stdout.count("dual: one device prepares, another trains") == 2, "the plan alone, and before the run"
    assert "Buffer Size: 50" in result.stderr
    assert [step for step, _ in TinyRun.at(tmp_path / "run").losses] == [1, 2, 3]
