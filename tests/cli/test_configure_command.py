"""`myxtts configure` and `python utilities/configure_max_gpu_utilization.py`: what is told and written."""

import re
from dataclasses import replace

import pytest

from myxtts.cli import configure, main
from myxtts.config.resolve import resolve_config
from myxtts.errors import MachineError
from myxtts.training.tuning import configurator as tuning
from myxtts.training.tuning.candidates import VARIABLES, Candidate
from myxtts.training.tuning.configurator import Tuned
from myxtts.training.tuning.files import Line, list_lines, list_variables
from myxtts.training.tuning.search import Answer, TrialResult, Verification
from tests.cli.test_profile_command import SMALL
from tests.support.processes import run_python

SCRIPT = "utilities/configure_max_gpu_utilization.py"
IN_FORCE = {"threads inside operations": "2", "compute precision": "float32"}
DEFAULT_IN_FORCE = {"threads inside operations": "1", "compute precision": "float32"}
XLA = Answer("XLA", "measured: on 70 ms a step; before 100 ms", Candidate("on", {"data.enable_xla": True}))
THREADS = Answer(
    "threads",
    "measured: 2 inside operations, 2 between 60 ms a step; before 70 ms",
    Candidate("2 inside operations, 2 between", environ={"TF_NUM_INTRAOP_THREADS": "2"}),
)
PRECISION = Answer("precision", "measured: mixed_bfloat16 300 ms a step; before 100 ms")
ANSWERS = (PRECISION, XLA, THREADS)


def make_tuned(*, verification=None, is_withdrawn=False):
    lines = () if is_withdrawn else tuple(list_lines(ANSWERS, [("data.pipeline_buffer_size", 50, "rule: deep enough")]))
    variables = () if is_withdrawn else tuple(list_variables(ANSWERS))
    return Tuned(TrialResult(0.1, 0.0), ANSWERS, lines, variables, verification)


@pytest.fixture
def run_configure(monkeypatch, capsys, tmp_path):
    """Runs the command with what a search has found; returns its output and the files."""

    def run(tuned, *words):
        monkeypatch.setattr(tuning, "tune", lambda *_, **__: tuned)
        path = tmp_path / "mine.yaml"
        assert configure.run(["--output", str(path), "--batch-size", "4", *words], "myxtts configure") == 0
        return capsys.readouterr().out, path, (tmp_path / "mine.env.sh").read_text()

    return run


def test_help_names_the_flags_without_tensorflow():
    result = run_python(["-X", "importtime", SCRIPT, "--help"])
    assert result.returncode == 0
    for flag in ("--verify", "--config", "--train-data", "--output", "--rehearsal"):
        assert flag in result.stdout
    assert "tensorflow" not in result.stderr


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path):
    result = run_python([SCRIPT, "--output", str(tmp_path / "nowhere" / "mine.yaml")])
    assert result.returncode == 2
    assert "cannot be written: No such file or directory" in result.stderr
    assert "trying" not in result.stderr


def test_cards_that_are_not_there_are_refused_with_the_command_that_was_given():
    result = run_python([SCRIPT, "--data-gpu", "0", "--model-gpu", "1", "--verify"])
    assert result.returncode == 2
    assert f"do the same on one device with\n  python {SCRIPT} --verify\n" in result.stderr
    assert "trying" not in result.stderr


def test_what_was_found_is_told_and_written_with_its_evidence(run_configure):
    checked = Verification((0.100,), DEFAULT_IN_FORCE, (0.060,), IN_FORCE)
    out, path, variables = run_configure(make_tuned(verification=checked))
    assert "With the defaults a step takes 100 ms in a short trial on this machine.\n" in out
    assert "COMPARED, one run of each (--verify: three)\n" in out
    assert "XLA: on\n  measured: on 70 ms a step; before 100 ms\n" in out
    assert "precision: unchanged\n" in out
    config = resolve_config(yaml_path=path)
    assert (config.data.enable_xla, config.data.batch_size, config.data.mixed_precision) == (True, 4, "float32")
    text = path.read_text()
    assert "  # measured: on 70 ms a step; before 100 ms\n  enable_xla: true\n" in text
    assert "  # given by you (--batch-size)\n  batch_size: 4\n" in text
    assert "# Compared once: 40.0% faster than the defaults." in text
    assert "export TF_NUM_INTRAOP_THREADS=2" in variables
    assert f"myxtts train --config {path}" in out


def test_a_gain_is_told_with_what_is_in_force(run_configure):
    checked = Verification((0.100, 0.104, 0.098), DEFAULT_IN_FORCE, (0.070, 0.071, 0.069), IN_FORCE)
    out, path, _ = run_configure(make_tuned(verification=checked), "--verify")
    assert re.search(r"the defaults +100 ms", out)
    assert re.search(r"these settings +70 ms", out)
    assert " 30.0% faster" in out
    assert "IN FORCE with these settings" in out
    assert re.search(r"threads inside operations +2", out)
    assert "Verified: 30.0% faster" in path.read_text()
    assert (
        "# As a run has it, a step took 100 ms with the defaults and 70 ms with what was found.\n" in path.read_text()
    )
    head = out.partition("Settings   ")[0]
    assert max(map(len, head.splitlines())) <= 80


def test_defaults_that_stay_are_said_to(run_configure):
    out, path, _ = run_configure(make_tuned(verification=Verification((0.1,), IN_FORCE)), "--verify")
    assert "Nothing faster than the defaults was found" in out
    assert "# Nothing faster was found" in path.read_text()
    assert re.search(r"compute precision +float32", out)


@pytest.mark.parametrize(
    ("tuned_s", "words"), [(0.120, "no gain, 20.0% slower: defaults kept."), (0.100, "no gain: defaults kept.")]
)
def test_settings_that_gain_nothing_are_withdrawn_in_words(run_configure, tuned_s, words):
    checked = Verification((0.100,) * 3, DEFAULT_IN_FORCE, (tuned_s,) * 3, IN_FORCE)
    out, path, variables = run_configure(make_tuned(verification=checked, is_withdrawn=True), "--verify")
    assert words in out
    assert "faster" not in out
    # What is shown is what stays.
    assert "IN FORCE with the defaults" in out
    assert re.search(r"threads inside operations +1", out)
    assert "the defaults stay in force" in path.read_text()
    assert resolve_config(yaml_path=path).data.enable_xla is False
    assert "export" not in variables


def test_a_comparison_that_failed_withdraws_in_words(run_configure):
    checked = Verification((0.1,), DEFAULT_IN_FORCE, failure="these settings failed (out of memory)")
    out, path, variables = run_configure(make_tuned(verification=checked, is_withdrawn=True))
    assert "NOT VERIFIED\n" in out
    told = " ".join(out.split())
    assert "these settings failed (out of memory). What was found is withdrawn; the file changes nothing. " in told
    assert "faster" not in out
    assert "# Comparing it with the defaults failed, so what was found is withdrawn.\n" in path.read_text()
    assert "export" not in variables
    head = out.partition("Settings   ")[0]
    assert max(map(len, head.splitlines())) <= 80


def test_defaults_without_memory_are_said_to_have_none(run_configure):
    tuned = replace(make_tuned(), refusal="/GPU:0 (model device) needs about 30 GB, and 24 GB are free.\nTry less.")
    out, path, _ = run_configure(tuned)
    assert "There is no memory for the defaults (/GPU:0 (model device)" in out
    assert "With the batch that fits a step takes 100 ms in a short trial." in path.read_text()
    assert max(map(len, out.partition("Settings   ")[0].splitlines())) <= 80
    checked = Verification((0.1,), DEFAULT_IN_FORCE, (0.2,), IN_FORCE)
    out, *_ = run_configure(replace(tuned, verification=checked))
    assert "the file changes nothing but the batch." in " ".join(out.split())


@pytest.mark.parametrize("error", [MachineError("out of memory"), KeyboardInterrupt()])
def test_a_measurement_that_fails_leaves_files_as_they_were(monkeypatch, tmp_path, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tuning, "tune", fail)
    path, variables = tmp_path / "mine.yaml", tmp_path / "mine.env.sh"
    variables.write_text("# of an earlier day\n")
    with pytest.raises(type(error)):
        configure.run(["--output", str(path)], "myxtts configure")
    assert not path.exists()
    assert variables.read_text() == "# of an earlier day\n"


def test_lines_of_settings_are_settings():
    assert list_lines([THREADS], []) == []
    assert list_lines([PRECISION, XLA], []) == [Line("data.enable_xla", True, XLA.evidence)]


def test_a_refusal_leaves_no_file_behind(tmp_path):
    path = tmp_path / "mine.yaml"
    words = ["--output", str(path), "--stage", "decoder", "--init-from", "somewhere"]
    assert main.run_command("configure", words, "myxtts configure") == 2
    assert not path.exists()


def test_several_workers_are_said_to_be_measured_as_one(run_configure):
    out, *_ = run_configure(make_tuned(), "--rehearsal", "--model-gpus", "0,1")
    assert "Note: One rank is measured, alone and with whole batches." in out


@pytest.mark.soak
def test_a_rehearsal_is_configured_and_trains_with_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    small = [word for word in SMALL if word not in ("--num-steps", "5")]
    given = [*small, "--no-enable-xla", "--mixed-precision", "float32", "--num-workers", "0"]
    result = run_python([SCRIPT, "--verify", "--output", str(path), *given])
    assert result.returncode == 0, result.stderr[-4000:]
    assert re.search(r"IN FORCE with (these settings|the defaults), read back", result.stdout)
    for row in (
        "readers",
        "batches read ahead",
        "batches prepared ahead",
        "codes found",
        "memory of model device",
        *VARIABLES,
    ):
        assert re.search(rf"^  {row} +\S", result.stdout, re.MULTILINE), row
    assert re.search(r"batches read ahead +none\b", result.stdout), "this process reads each when it is needed"
    assert re.search(r"weights on +/CPU:\d", result.stdout)
    assert re.search(r"compute precision +float32", result.stdout)
    plan = run_python(["train_main.py", "--config", str(path), "--print-plan"])
    assert plan.returncode == 0, plan.stderr
    assert "rehearsal on logical CPU devices" in plan.stdout
