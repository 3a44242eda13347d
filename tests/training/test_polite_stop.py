"""A signal before the run is open: where it stopped, whether there is something to resume, and how."""

import os
import signal

import pytest

from myxtts.cli import train as command
from myxtts.training import mode as auto_mode
from myxtts.training.errors import RunStoppedError
from myxtts.training.stopping import explain_stop_before_run, stops_politely
from tests.training.test_run_folder import COMMAND, make_config, train

RESUME = "python train_main.py --train-data 'my voice' --resume"
DOING = "while the mode was chosen"


def kill_self(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def test_a_new_run_is_started_again_with_the_same_command(tmp_path):
    stopped = explain_stop_before_run(make_config(tmp_path / "run"), COMMAND, signal.SIGTERM, DOING)
    assert str(stopped) == (
        "Stopped by SIGTERM while the mode was chosen, before anything was trained in this session. "
        "Start it again with the same command."
    )
    assert (stopped.resume_command, stopped.exit_code) == (None, 0)
    assert not (tmp_path / "run").exists(), "nothing is made for it"


def test_a_run_that_has_trained_before_is_resumed(tmp_path):
    train(tmp_path / "run", 20)
    stopped = explain_stop_before_run(make_config(tmp_path / "run"), COMMAND, signal.SIGINT)
    assert f"Nothing is lost of the run in {tmp_path / 'run'}: 20 updates of it are done." in str(stopped)
    assert (stopped.resume_command, stopped.exit_code) == (RESUME, 130)


def test_a_run_that_was_to_be_kept_aside_is_not_resumed(tmp_path):
    train(tmp_path / "run", 20)
    config = make_config(tmp_path / "run").replace(training={"resume": "reset"})
    assert explain_stop_before_run(config, COMMAND, signal.SIGTERM).resume_command is None


def test_the_block_ends_at_once_and_signals_are_as_before(tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def measure_for_ever():
        kill_self()
        pytest.fail("the block goes on")

    with (
        pytest.raises(RunStoppedError, match="Stopped by SIGTERM while the mode was chosen"),
        stops_politely(make_config(tmp_path), COMMAND, DOING),
    ):
        measure_for_ever()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_library_that_swallows_the_stop_does_not_hide_it(tmp_path):
    def load_library():
        try:
            kill_self()
        except BaseException:  # noqa: BLE001  (as some do while they are imported)
            return

    with pytest.raises(RunStoppedError), stops_politely(make_config(tmp_path), COMMAND, DOING):
        load_library()


def test_the_command_says_that_it_was_stopped_while_it_chose_the_mode(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(auto_mode, "plan_run", lambda *arguments, **options: kill_self(signal.SIGINT))
    words = ["--rehearsal", "--mode", "auto", "--checkpoint-dir", str(tmp_path / "run")]
    assert command.run(words, "train_main.py") == 130
    said = capsys.readouterr().out
    assert "Stopped by SIGINT while the mode was chosen, before anything was trained in this session." in said
    assert "Resume" not in said
