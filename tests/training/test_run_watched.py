"""Whole runs that leak or hang, and one that does neither, for a long time."""

import sys

import pytest

from myxtts.monitoring.memory_watch import LEAK_EVENT
from tests.training.runs import PATIENCE_S, finish, make_corpus, make_words, read_events, start_command, train
from tests.training.strikes import leaves_nothing

pytestmark = pytest.mark.soak

STEPS = 200
LONG_S = 7200
"""For two thousand steps on a machine that has much else to do."""


@pytest.fixture(scope="module")
def flags(share):
    def make(folder):
        corpus = make_corpus(folder / "corpus")
        train(folder / "codec", "--train-data", corpus, "--stage", "codec", "--max-steps", "3", "--mode", "single")

    base = share("watched_base", make)
    return ("--train-data", str(base / "corpus"), "--codec", str(base / "codec"))


def run_with(fault, folder, *flags, patience_s=PATIENCE_S):
    """How a run with a fault ended."""
    words = make_words(folder, *flags)
    with leaves_nothing(folder):
        command = [sys.executable, "-m", "tests.training.injected", fault, *words]
        return finish(start_command(folder, command), folder, patience_s)


@pytest.mark.parametrize(
    ("fault", "mode", "memory", "phase"),
    [
        ("leak_training", "single", "host memory of the trainer", "training"),
        ("leak_validation", "single", "host memory of the trainer", "validation"),
        ("leak_checkpoint", "single", "host memory of the trainer", "checkpoint"),
        ("leak_device", "single", "device memory of the model", "training"),
        ("leak_preparation", "dual", "device memory of the preparation", "preparation"),
        ("leak_producer", "isolated", "host memory of the producer", "preparation"),
    ],
)
def test_a_leak_is_found_and_named_by_its_phase_within_200_steps(flags, tmp_path, fault, mode, memory, phase):
    folder = tmp_path / "leaking"
    rounds = ("--validation-interval", 10, "--checkpoint-interval", 10 if phase == "checkpoint" else 50)
    said = run_with(fault, folder, *flags, "--mode", mode, *rounds, "--epochs", 400, "--max-steps", STEPS)
    assert said.code == 0, said.text[-6000:]
    found = [event for event in read_events(folder) if event.name == LEAK_EVENT]
    assert found, said.text[-6000:]
    assert found[0].step <= STEPS
    assert found[0].text.startswith(f"Memory keeps growing: {memory}, ")
    assert f"in the {phase} of the gpt stage" in found[0].text
    assert found[0].text in said.text
    assert found[0].text in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["single", "isolated"])
def test_a_run_without_a_leak_raises_no_alarm_in_2000_steps(flags, tmp_path, mode):
    folder = tmp_path / "sound"
    often = ("--validation-interval", 100, "--checkpoint-interval", 200, "--epochs", 4000, "--max-steps", 2000)
    said = run_with("nothing", folder, *flags, "--mode", mode, *often, patience_s=LONG_S)
    assert said.code == 0, said.text[-6000:]
    assert [event for event in read_events(folder) if event.name == LEAK_EVENT] == []


@pytest.mark.parametrize(("fault", "stage"), [("hang_deaf", "step"), ("hang_in_checkpoint", "checkpoint")])
@pytest.mark.parametrize("mode", ["single", "isolated"])
def test_a_run_that_hangs_ends_with_the_stage_its_stack_and_the_way_on(flags, tmp_path, fault, stage, mode):
    folder = tmp_path / "hanging"
    quick = ("--watchdog-seconds", 8, "--checkpoint-interval", 5, "--max-steps", 20)
    said = run_with(fault, folder, *flags, "--mode", mode, *quick)
    assert said.code == 1, said.text[-6000:]
    assert f"Stage '{stage}' has made no progress" in said.text
    assert "tests/training/injected.py" in said.text, "its stack"
    assert "To go on from the last checkpoint:\n  python train_main.py" in said.text
    assert [event.name for event in read_events(folder)].count("stalled") >= 1
