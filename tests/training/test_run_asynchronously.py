"""Runs with asynchronous execution, which is how GPUs behave: the same losses, and nothing read before it is there."""

import sys

import pytest

from tests.support.tiny_run import LiveRun, TinyRun, run_tiny, tiny_words

CODE = """
import sys
from myxtts.cli.main import main
from myxtts.devices import runtime
runtime.set_synchronous_execution(False)
sys.exit(main(["train", *sys.argv[1:]]))
"""
FLAGS = ("--codec-steps", "4", "--max-steps", "5", "--validation-interval", "5")
SETTINGS = {"data.batch_size": 32}


@pytest.fixture(scope="module")
def expected(share):
    return TinyRun.at(share("synchronous", lambda folder: run_tiny(folder, *FLAGS, **SETTINGS)))


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["single", "dual", "isolated"])
def test_a_run_that_does_not_wait_gives_the_same_losses(expected, tmp_path, mode):
    words = tiny_words(tmp_path / "run", *FLAGS, mode=mode, **SETTINGS)
    run = LiveRun(tmp_path / "run", [sys.executable, "-c", CODE, *words]).finish(0)
    assert len(run.losses) == 5
    assert run.losses == expected.losses
