"""A signal that comes while nothing is being trained: the run ends cleanly and says whether it can be resumed."""

import os
import signal
import threading
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from myxtts.cli import train as command
from myxtts.devices.plan import Mode
from myxtts.errors import StageStalledError
from myxtts.training import trainer as module
from myxtts.training import workers
from myxtts.training.errors import RunStoppedError
from myxtts.training.loop import ALL_DONE, Ending
from myxtts.training.run_folder import open_run
from myxtts.training.stopping import StopRequests
from myxtts.training.trainer import StageResult, TrainingResult, XTTSTrainer
from tests.checkpoints.training_states import save
from tests.pipeline.test_failing_sources import make_plan
from tests.training.test_run_folder import COMMAND, make_config, train

RESUME = "python train_main.py --train-data 'my voice' --resume"


@pytest.fixture(autouse=True)
def process_as_it_is(monkeypatch):
    """Devices and logging stay as they are: a plan is applied once in the life of a process."""
    monkeypatch.setattr(workers, "apply_devices", lambda config, plan: None)
    monkeypatch.setattr("myxtts.utils.commons.setup_logging", lambda: None)


def kill_self(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.fixture
def killed_in_the_scan(monkeypatch):
    def collect(*arguments, **options):
        kill_self()
        pytest.fail("the scan goes on after the signal")

    monkeypatch.setattr(module, "collect_run_data", collect)


def make_trainer(folder, **sections):
    return XTTSTrainer(make_config(folder, **sections), plan=make_plan(Mode.SINGLE), command=COMMAND)


@pytest.mark.usefixtures("killed_in_the_scan")
def test_a_signal_during_the_scan_of_a_new_run_says_that_nothing_was_trained(tmp_path, capsys):
    planned = Mock(plan=make_plan(Mode.SINGLE), choice=None)

    assert command._train(make_config(tmp_path / "run"), planned, COMMAND, is_worker=False) == 0

    said = capsys.readouterr().out
    assert "Stopped by SIGTERM before anything was trained in this session." in said
    assert "Resume" not in said
    open_run(make_config(tmp_path / "run"), command=COMMAND).close()


@pytest.mark.usefixtures("killed_in_the_scan")
def test_a_signal_during_the_scan_of_a_resumed_run_says_how_to_go_on(tmp_path, capsys):
    train(tmp_path / "run", 20)
    planned = Mock(plan=make_plan(Mode.SINGLE), choice=None)

    assert command._train(make_config(tmp_path / "run"), planned, COMMAND, is_worker=False) == 0

    said = capsys.readouterr().out
    assert "20 updates of it are done" in said
    assert f"Resume  {RESUME}" in said.splitlines()


@pytest.mark.usefixtures("killed_in_the_scan")
def test_a_worker_that_is_asked_to_stop_has_not_succeeded(tmp_path):
    """Who starts workers again unless they succeed, as Kubernetes does with a pod that has to move, starts this one again."""
    planned = Mock(plan=make_plan(Mode.SINGLE), choice=None)
    assert command._train(make_config(tmp_path / "run"), planned, COMMAND, is_worker=True) == os.EX_TEMPFAIL


@pytest.mark.parametrize(("is_finished", "code"), [(True, 0), (False, os.EX_TEMPFAIL)])
def test_a_worker_succeeds_where_the_run_is_finished(tmp_path, monkeypatch, capsys, is_finished, code):
    ending = Ending("asked to", is_finished=is_finished, signal=signal.SIGTERM)
    stage = StageResult(ending, 7, Mock(), tmp_path, tmp_path / "its own board")
    monkeypatch.setattr(XTTSTrainer, "train", lambda self: TrainingResult(stage, RESUME, None))
    monkeypatch.setattr("myxtts.monitoring.summary_view.format_summary", lambda summary: "")
    planned = Mock(plan=make_plan(Mode.SINGLE), choice=None)
    # A worker that is not the chief keeps its curves to itself, whatever is asked for.
    config = make_config(tmp_path / "run", training={"tensorboard_log_dir": str(tmp_path / "of the chief")})
    assert command._train(config, planned, COMMAND, is_worker=True) == code
    said = capsys.readouterr().out.splitlines()
    assert f"Report  {tmp_path / 'report.html'}" in said
    assert f"Curves  tensorboard --logdir '{tmp_path / 'its own board'}'" in said


def test_a_signal_before_the_run_is_opened_ends_it_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "apply_devices", lambda config, plan: kill_self(signal.SIGINT))
    with pytest.raises(RunStoppedError, match="before anything was trained in this session") as caught:
        make_trainer(tmp_path / "run").train()
    assert (caught.value.exit_code, caught.value.resume_command) == (130, None)
    assert not (tmp_path / "run").exists()


def test_a_signal_before_a_resumed_run_is_opened_says_how_to_go_on(tmp_path, monkeypatch):
    train(tmp_path / "run", 20)
    monkeypatch.setattr(workers, "apply_devices", lambda config, plan: kill_self(signal.SIGINT))
    with pytest.raises(RunStoppedError, match="20 updates of it are done") as caught:
        make_trainer(tmp_path / "run").train()
    assert (caught.value.exit_code, caught.value.resume_command) == (130, RESUME)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_signal_while_tensorflow_is_imported_says_where_it_stopped(tmp_path, monkeypatch, capsys, is_resumed):
    @contextmanager
    def import_for_ever():
        kill_self()
        pytest.fail("the import goes on after the signal")
        yield

    if is_resumed:
        train(tmp_path / "run", 20)
    monkeypatch.setattr("myxtts.processes.watch_import", import_for_ever)

    assert command._train(make_config(tmp_path / "run"), Mock(), COMMAND, is_worker=False) == 0

    said = capsys.readouterr().out
    assert "Stopped by SIGTERM while TensorFlow was imported, before anything was trained in this session." in said
    assert (f"Resume  {RESUME}" in said.splitlines()) is is_resumed
    assert ("20 updates of it are done" in said) is is_resumed


def test_a_signal_between_codec_and_gpt_ends_the_run_before_the_gpt_is_built(tmp_path, monkeypatch):
    def train_codec(self, run, config, data):
        with self._workers.stop.while_busy():
            save(run.store, 7)
            kill_self()
        return StageResult(Ending(ALL_DONE, is_finished=True), 7, Mock(), run.path, Mock())

    monkeypatch.setattr(XTTSTrainer, "_collect_data", lambda *arguments: Mock(text_tokens=300))
    monkeypatch.setattr(XTTSTrainer, "_train_codec", train_codec)
    monkeypatch.setattr(module, "read_codec", lambda path: pytest.fail("goes on to the GPT"))

    with pytest.raises(RunStoppedError, match="7 updates of its codec are done") as caught:
        make_trainer(tmp_path / "run").train()

    assert (caught.value.exit_code, caught.value.resume_command) == (0, RESUME)


def test_a_signal_while_a_finished_run_speaks_leaves_it_finished(tmp_path, monkeypatch):
    done = StageResult(Ending(ALL_DONE, is_finished=True), 7, Mock(), tmp_path, Mock())
    trainer = make_trainer(tmp_path / "run")
    monkeypatch.setattr(module, "speak_at_end", lambda path, corpus: kill_self())
    with StopRequests() as stop, stop.while_idle():
        trainer._workers = workers.SingleWorker(stop)
        assert trainer._speak_at_end(Mock(path=tmp_path), Mock(), done) is None
        kill_self()


def hang(*arguments, **options):
    """As a wait with a timeout does: Python runs now and then."""
    never = threading.Event()
    for _ in range(3000):
        never.wait(0.01)
    pytest.fail("nobody ended it")


@pytest.mark.parametrize(
    ("owner", "place", "stage", "advice"),
    [
        (workers, "apply_devices", "setting up the devices", "Start it again with the same command."),
        (module, "collect_run_data", "scanning the corpus", f"To go on from the last checkpoint:\n  {RESUME}"),
    ],
)
def test_a_start_that_hangs_is_named_and_ended(tmp_path, monkeypatch, owner, place, stage, advice):
    monkeypatch.setattr("myxtts.pipeline.stage.IMPORT_S", 0.05)
    monkeypatch.setattr(owner, place, hang)
    trainer = make_trainer(tmp_path / "run", training={"watchdog_seconds": 0.01})
    with pytest.raises(StageStalledError, match=f"Stage '{stage}' has made no progress for more than") as caught:
        trainer.train()
    assert advice in str(caught.value)
    assert "in hang" in str(caught.value), "its stack"


def test_a_scan_that_goes_on_is_no_hang(tmp_path, monkeypatch):
    """Each look at some clips takes less than the limit, all of them together far more."""

    class Done(Exception):
        pass

    def collect(*arguments, progress, **options):
        for done in range(60):
            threading.Event().wait(0.02)
            progress("clips", done, 60)
        raise Done

    monkeypatch.setattr("myxtts.pipeline.stage.IMPORT_S", 0.4)
    monkeypatch.setattr(module, "collect_run_data", collect)
    with pytest.raises(Done):
        make_trainer(tmp_path / "run", training={"watchdog_seconds": 0.01}).train()
