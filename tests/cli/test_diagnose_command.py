"""`myxtts diagnose` and `python utilities/diagnose_gpu_utilization.py`: what is told, and the exit code."""

import json
import logging
import re
from dataclasses import replace

import pytest

from myxtts.cli import diagnose
from myxtts.config import XTTSConfig
from myxtts.devices import machine
from myxtts.devices.nvml import Card, CardScan, Nvml, PhysicalId
from myxtts.devices.topology import Connection, Link
from myxtts.errors import NvmlError
from myxtts.monitoring.diagnosis import format_diagnosis, format_diagnosis_json
from myxtts.monitoring.software_facts import read_software
from tests.monitoring.profiles import Stages, make_profile, make_run
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import clean_environ, run_python

LOOK = ["utilities/diagnose_gpu_utilization.py", "--skip-speed-test"]


@pytest.mark.parametrize(
    ("sections", "flags"),
    [
        ({"training": {"model_gpus": "0,1"}}, "--model-gpus"),
        ({"data": {"data_gpu": 0, "model_gpu": 1}}, "--data-gpu and --model-gpu"),
    ],
)
def test_cards_that_are_far_apart_are_left_out_by_the_flags_that_asked_for_them(sections, flags):
    facts = machine.Machine(CardScan((), (), None), 8000)
    far = [Link(PhysicalId(0), PhysicalId(1), Connection.SYS)]
    issues = diagnose._check_set_up(XTTSConfig(**sections), facts, read_software(), far)
    (issue,) = [issue for issue in issues if "far apart" in issue.observation]
    assert issue.remedy == f"train on one card: leave out {flags}"


def test_help_names_the_flags_without_tensorflow():
    result = run_python(["-X", "importtime", LOOK[0], "--help"])
    assert result.returncode == 0
    for flag in ("--config", "--skip-speed-test", "--json", "--rehearsal"):
        assert flag in result.stdout
    assert "tensorflow" not in result.stderr


def test_a_machine_without_a_card_is_serious_and_everything_else_is_told(tmp_path, make_machine):
    file = tmp_path / "facts.json"
    result = run_python([*LOOK, "--json", str(file)], make_machine(extra=["init 12"]).environ())
    assert result.returncode == 1
    text = result.stdout.rpartition("\nFacts ")[0]
    assert max(map(len, text.splitlines())) <= 80
    for section in ("SOFTWARE", "DEVICES", "SETTINGS", "CORPUS", "SPEED TEST\nnot run", "LIVE", "ISSUES (1)"):
        assert section in text
    assert "libcudart.so" in text
    assert "1   [serious] This machine has no NVIDIA GPU" in text
    facts = json.loads(file.read_text())
    assert facts["is_serious"] is True
    assert facts["cards"] == []
    assert facts["speed"] is None


def test_in_a_rehearsal_no_card_is_missed():
    result = run_python([*LOOK, "--rehearsal"], clean_environ(CUDA_LAUNCH_BLOCKING="1"))
    assert result.returncode == 0, result.stdout
    assert "[worth changing] CUDA_LAUNCH_BLOCKING=1 is set" in result.stdout
    assert "environment    CUDA_VISIBLE_DEVICES=-1, CUDA_LAUNCH_BLOCKING=1" in result.stdout


def test_a_machine_with_cards_is_told_what_is_missing_hidden_lost_and_far_apart(make_machine):
    stub = make_machine(
        StubCard(0, util=15), StubCard(1), StubCard(2, state=GPU_IS_LOST),
        extra=["link 0 1 50", "activity 0 90000 350000 600 1980 50 32"],
    )  # fmt: skip
    result = run_python([*LOOK, "--batch-size", "2"], stub.environ(CUDA_VISIBLE_DEVICES="0"))
    assert result.returncode == 1
    words = " ".join(result.stdout.split())
    assert "GPU 0 NVIDIA GeForce RTX 4090, 24064 MB free of 24564 MB" in words
    assert "[serious] CUDA libraries that TensorFlow needs are missing" in words
    assert "Remedy pip install 'tensorflow[and-cuda]'" in words
    assert "[serious] GPU 2 does not answer" in words
    assert "[note] CUDA_VISIBLE_DEVICES hides GPU 1" in words
    assert "[note] GPU 0 and GPU 1 are far apart (SYS)" in words
    assert "[worth changing] The batch is small for the card" in words
    assert "GPU 0 the driver says: busy 15.0%, 90 W of 350 W, 600 MHz of 1980 MHz" in words
    assert "[worth changing] GPU 0 runs below its full clock: temperature" in words
    # Serious ones first.
    assert words.rindex("[serious]") < words.index("[worth changing]") < words.index("[note]")


def test_a_corpus_that_cannot_be_read_is_an_issue_and_the_rest_is_told(tmp_path):
    result = run_python([*LOOK, "--rehearsal", "--train-data", str(tmp_path / "nowhere")])
    assert result.returncode == 1
    assert "[serious] The corpus cannot be used" in result.stdout
    assert "nowhere" in result.stdout
    assert "CORPUS\nnot looked at" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(diagnose, "LIVE_S", 0.0)
    logger = logging.getLogger("myxtts.data.scan")
    level = logger.level
    yield
    # The command silences it for good; the tests that follow want to hear it.
    logger.setLevel(level)


def test_the_speed_test_is_of_the_users_run_and_its_findings_are_ranked_in(monkeypatch, quick):
    from myxtts.cli import profile

    asked = []

    def measure(planned, steps):
        asked.append((planned.config.data.batch_size, str(planned.plan.mode), steps))
        return make_profile(Stages(read=60), run=replace(make_run(), notes=("One rank is measured.",)))

    monkeypatch.setattr(profile, "measure", measure)
    config = XTTSConfig(data={"batch_size": 2}, training={"rehearsal": True, "mode": "dual"})
    diagnosis = diagnose.diagnose(config, {}, tests_speed=True)
    assert asked == [(2, "dual", diagnose.STEPS)]
    assert diagnosis.issues[0].observation == "Data loading bottleneck"
    # A rehearsal that was asked for shares its processors: whatever is slow in it is nothing serious.
    assert not diagnosis.is_serious
    text = format_diagnosis(diagnosis)
    assert "SPEED TEST\nStep" in text
    assert re.search(r"^Note +One rank is measured\.$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_mode_auto_is_chosen_for_the_speed_test_as_for_a_run(monkeypatch, quick):
    from myxtts.cli import profile

    asked = []

    def measure(planned, steps):
        asked.append(str(planned.plan.mode))
        return make_profile(Stages())

    monkeypatch.setattr(profile, "measure", measure)
    # One device: there is nothing to choose, and nothing is measured for it.
    config = XTTSConfig(data={"batch_size": 2}, training={"mode": "auto"})
    diagnosis = diagnose.diagnose(config, {"CUDA_VISIBLE_DEVICES": "-1"}, tests_speed=True)
    assert asked == ["single"]
    assert not [issue for issue in diagnosis.issues if "could not be run" in issue.observation]


def test_a_package_that_does_not_load_is_an_issue(monkeypatch, quick):
    from myxtts.cli import profile

    def measure(planned, steps):
        raise ImportError("libtensorflow_framework.so.2: cannot open shared object file")

    monkeypatch.setattr(profile, "measure", measure)
    diagnosis = diagnose.diagnose(XTTSConfig(training={"rehearsal": True}), {}, tests_speed=True)
    assert diagnosis.issues[0].observation == "The speed test could not be run: a package does not load"
    assert "libtensorflow_framework.so.2" in diagnosis.issues[0].evidence


def test_a_sampler_that_fails_says_why_nothing_is_known(monkeypatch, quick):
    def read_activity(self, physical_id):
        raise NvmlError("The NVIDIA driver failed: GPU is lost.")

    card = Card(PhysicalId(0), "RTX 4090", "GPU-0", "0000:01", 24564, 24000)
    monkeypatch.setattr(Nvml, "read_activity", read_activity)
    monkeypatch.setattr(Nvml, "__enter__", lambda self: self)
    monkeypatch.setattr(Nvml, "__exit__", lambda self, *_: None)
    monkeypatch.setattr(machine, "scan_cards", lambda: CardScan((card,), (), None))
    diagnosis = diagnose.diagnose(XTTSConfig(training={"rehearsal": True}), {}, tests_speed=False)
    assert diagnosis.card_problem == "The NVIDIA driver failed: GPU is lost."
    assert "GPUs        unknown: The NVIDIA driver failed: GPU is lost." in format_diagnosis(diagnosis)
    assert json.loads(format_diagnosis_json(diagnosis))["card_problem"] == diagnosis.card_problem


@pytest.mark.parametrize("flags", [[], ["--rehearsal"]])
def test_without_tensorflow_it_is_the_missing_library(flags):
    """The speed test is asked for, too: it cannot be run, and that is no traceback."""
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from myxtts.cli.main import run_command\n"
        f"sys.exit(run_command('diagnose', {flags!r}, 'myxtts diagnose'))"
    )
    result = run_python(["-c", code])
    assert "Traceback" not in result.stderr, result.stderr
    assert result.returncode == 1
    assert "TensorFlow  not installed" in result.stdout
    words = " ".join(result.stdout.split())
    assert "[serious] TensorFlow is not installed: nothing can be trained" in words
    assert "Remedy pip install tensorflow Gain" in words
    assert "SPEED TEST\nnot run" in result.stdout


def test_a_speed_test_that_fails_is_an_issue(quick):
    config = XTTSConfig(data={"data_gpu": 0, "model_gpu": 1})
    diagnosis = diagnose.diagnose(config, {"CUDA_VISIBLE_DEVICES": "-1"}, tests_speed=True)
    (issue,) = [issue for issue in diagnosis.issues if issue.observation == "The speed test could not be run"]
    assert "Insufficient GPUs for Multi-GPU Mode" in issue.evidence
    assert diagnosis.profile is None
