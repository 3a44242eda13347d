"""`myxtts profile` and `python utilities/dual_gpu_bottleneck_profiler.py`: the real pipeline, and what is written."""

import json
import re

import pytest

from myxtts.cli.main import run_command
from tests.support.processes import ROOT, clean_environ, run_python

SMALL = (
    *("--rehearsal", "--model-size", "tiny", "--batch-size", "4", "--num-workers", "0", "--num-steps", "5"),
    # All clips in one bucket: one shape is traced.
    *("--min-clip-seconds", "2.61", "--max-clip-seconds", "2.965", "--prompt-seconds", "1", "--cache", "off", "--buffer-size", "2"),
)  # fmt: skip


def run_profile(*words):
    return run_python(["utilities/dual_gpu_bottleneck_profiler.py", *words])


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("dual_gpu_bottleneck_profiler", "--batch-size --num-steps --data-gpu --model-gpu --json --html --trace --rehearsal"),
        ("configure_max_gpu_utilization", "--verify --config --train-data --output --rehearsal"),
        ("diagnose_gpu_utilization", "--config --skip-speed-test --json --rehearsal"),
    ],
)  # fmt: skip
def test_help_names_the_flags_without_tensorflow_from_any_folder(tmp_path, script, flags):
    words = ["-X", "importtime", str(ROOT / "utilities" / f"{script}.py"), "--help"]
    result = run_python(words, clean_environ(), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert set(flags.split()) <= set(re.findall(r"--[\w-]+", result.stdout))
    assert "tensorflow" not in result.stderr


@pytest.mark.parametrize("steps", ["4", "-1", "many"])
def test_too_few_steps_are_refused(steps, capsys):
    assert run_command("profile", ["--num-steps", steps], "myxtts profile") == 2
    assert f"Argument --num-steps: must be a whole number of at least 5, but is {steps!r}." in capsys.readouterr().err


@pytest.mark.soak
def test_an_isolated_run_is_profiled_through_its_producer_process(tmp_path):
    files = {name: tmp_path / f"profile.{name}" for name in ("json", "html", "trace")}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    result = run_profile(*SMALL, "--data-gpu", "0", "--model-gpu", "1", "--enable-memory-isolation", *flags)
    assert result.returncode == 0, result.stderr[-4000:]
    text = result.stdout
    assert max(map(len, text.splitlines())) <= max(80, *(len(f"Figures  {path} (open it at https://ui.perfetto.dev)") for path in files.values()))  # fmt: skip
    for row in ("Data Load", "Preprocess", "GPU Transfer", "Training", "Total"):
        assert re.search(rf"^{row} +\d+\.\d\d \+- \d+\.\d\d +\d+\.\d\d +\d+\.\d%$", text, re.MULTILINE), row
    assert "TIMING BREAKDOWN (3 + 2 batches; " in text
    facts = json.loads(files["json"].read_text())
    assert facts["run"]["mode"] == "isolated"
    costs = facts["costs"]
    # Measured in the other process, and still on this one's clock: nothing is negative, and the parts make up the step.
    assert costs["Preprocess"]["own_s"] > 0.001
    assert costs["GPU Transfer"]["own_s"] > 0
    for batch in facts["batches"]:
        assert min(batch["split_s"].values()) >= 0
        assert sum(batch["split_s"].values()) == pytest.approx(batch["step_s"])
    numbers = [batch["number"] for batch in facts["batches"]]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert facts["memory"][0]["used_bytes"] is None
    assert facts["unsynchronised"]["steps"] == 2
    assert facts["launches"]["gradients"] > 500
    assert "as the step is built for a processor. Here nothing is launched" in " ".join(text.split())
    assert facts["three_runs"]["pipeline_alone_s"] > 0
    assert files["html"].read_text().startswith("<!doctype html>")
    trace = json.loads(files["trace"].read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 5 * 3
