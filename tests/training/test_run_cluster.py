"""Several trainers of one run, as actors of a Ray cluster of this machine: the same losses as one, and on they go when one dies."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress

import psutil
import pytest

from myxtts.cluster.trainers import TRAINER
from myxtts.errors import HeadLostError, UserError
from myxtts.monitoring.metrics import TrainRow
from tests.support.processes import run_python
from tests.support.tiny_run import TinyRun, at_step, leaves_nothing, list_processes, run_tiny, start_tiny, wait_for
from tests.training.test_run_cards import assert_same_files, assert_same_losses

FLAGS = (
    *("--grad-accum", "2", "--lr-schedule", "constant", "--validation-interval", "3", "--checkpoint-interval", "2"),
    *("--keep-last", "99"),
)
TRAINERS = ("--cluster", "local", "--trainers", "2")
EXACT = {"model.dropout": 0}
"""Masks are drawn for a trainer's own rows, so with dropout others are left out than by one process."""
RIGHTLESS = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", "--")
"""Root, who may read this tree, without any right but one that the kernel asks of root where it asks nothing of other users."""


def find_obstacle(*before):
    """Why trainers on one machine cannot have a network of their own here; None where they can."""
    tried = subprocess.run([*before, "unshare", "--user", "--net", "true"], capture_output=True, text=True)
    return f"no network of one's own: {tried.stderr.strip()}" if tried.returncode else None


pytestmark = pytest.mark.skipif(find_obstacle() is not None, reason=str(find_obstacle()))


def find_trainer(folder, index):
    """The process of a trainer."""
    for process in list_processes(folder):
        with suppress(psutil.Error):
            told = process.environ().get(TRAINER)
            if told is not None and json.loads(told)[1] == index and "myxtts.cli.main" in process.cmdline():
                return process
    raise AssertionError(f"there is no trainer {index}")


@pytest.fixture(scope="session")
def killed(share, base_flags):
    """Two trainers, one of which is killed after some updates. Beside it the same updates by one process."""

    def make(folder):
        folder.mkdir()
        flags = (*base_flags, *FLAGS, "--max-steps", "5")
        run_tiny(folder / "alone", *flags, **EXACT)
        with leaves_nothing(folder / "run"):
            live = start_tiny(folder / "run", *flags, *TRAINERS, **EXACT)
            live.wait_for(at_step(folder / "run", 3))
            find_trainer(folder / "run", 1).kill()
            live.finish(0)

    return share("cluster", make)


def test_when_a_trainer_dies_all_go_on_from_the_last_checkpoint_with_the_losses_of_one_process(killed):
    alone, run = TinyRun.at(killed / "alone"), TinyRun.at(killed / "run")
    assert "[1] was ended by signal 9" in run.text
    assert "All trainers start again from the last checkpoint, 1. time of at most 3." in run.text
    assert_same_losses(run, alone)
    assert run.counts == alone.counts, "together they train on as many clips"
    assert_same_files(alone, run, rtol=2e-3, atol=2e-5)
    waits = run.list_rows(TrainRow)[-1].flow.trainers
    assert [each.name for each in waits] == ["Trainer 0", "Trainer 1"]
    assert all(each.items == 2 and each.taker_wait_s + each.giver_wait_s > 0 for each in waits), "of one update"
    assert "Trainer 1: waits" in run.text
    assert "Trainer 1" in (run.folder / "report.html").read_text()
    assert "Traceback" not in run.text


def test_only_the_chief_keeps_the_run(killed):
    other = TinyRun.at(killed / "run" / "worker-1")
    assert other.checkpoints == []
    assert not (other.folder / "run.json").exists()
    assert dict(other.losses) == dict(TinyRun.at(killed / "run").losses)


def make_rightless():
    """What starts a command without rights, where that means something here."""
    if os.getuid() != 0:
        return ()
    if shutil.which("setpriv") is None or (obstacle := find_obstacle(*RIGHTLESS)):
        pytest.skip("needs setpriv (util-linux)" if shutil.which("setpriv") is None else obstacle)
    return RIGHTLESS


def test_who_has_no_rights_has_a_network_too(tmp_path):
    """With one thread only, so it comes before all that imports NumPy: first of all a look at the corpus, which is not there."""
    words = ["train_main.py", *TRAINERS, "--rehearsal", "--train-data", tmp_path / "none", "--codec", tmp_path]
    ended = run_python(list(map(str, words)), before=make_rightless())
    assert ended.returncode == UserError.exit_code
    assert f"{tmp_path / 'none'}" in ended.stderr
    assert "network" not in ended.stderr


@pytest.mark.soak
def test_a_cluster_that_lost_a_trainer_and_its_driver_tells_the_story_of_one_that_did_not(tmp_path, base_flags):
    """With dropout, bit for bit; and what the driver leaves behind when it is killed ends by itself."""
    flags = (*base_flags, *FLAGS, *TRAINERS, "--max-steps", "8")
    unbroken, broken = start_tiny(tmp_path / "unbroken", *flags).finish(0), tmp_path / "broken"
    live = start_tiny(broken, *flags)
    live.wait_for(at_step(broken, 3))
    find_trainer(broken, 0).kill()
    live.wait_for(at_step(broken, 5))
    with leaves_nothing(broken):
        live.process.kill()
        live.finish(-signal.SIGKILL)
        wait_for(lambda: not list_processes(broken), lambda: True, "somebody is left")
    assert start_tiny(broken, *flags).finish(0).story == unbroken.story


@pytest.mark.soak
def test_a_driver_that_is_asked_to_stop_has_all_save_and_stop_at_the_same_update(tmp_path, base_flags):
    live = start_tiny(tmp_path / "run", *base_flags, *FLAGS, *TRAINERS, "--max-steps", "100000")
    live.strike(at_step(live.folder, 2), signal.SIGTERM)
    run = live.finish(os.EX_TEMPFAIL)
    assert "--trainers 2" in " ".join(run.resume_words)
    assert run.losses == TinyRun.at(run.folder / "worker-1").losses
    assert run.checkpoints[-1] == run.losses[-1][0]


@pytest.mark.soak
def test_without_the_head_of_ray_all_end_soon_and_the_driver_says_how_to_go_on(tmp_path, base_flags):
    live = start_tiny(tmp_path / "run", *base_flags, *FLAGS, *TRAINERS, "--max-steps", "100000")
    live.wait_for(at_step(live.folder, 2))
    with leaves_nothing(live.folder):
        next(each for each in list_processes(live.folder) if "gcs_server" in each.name()).kill()
        run = live.finish(HeadLostError.exit_code)
    assert "The head of the cluster at 127.0.0.1" in run.text
    assert "--trainers 2" in " ".join(run.resume_words)


@pytest.mark.soak
def test_trainers_may_have_several_cards_and_preparers_each(tmp_path, base_flags, killed):
    flags = (*base_flags, *FLAGS, *TRAINERS, "--model-gpus", "0,1", "--preparers", "2", "--max-steps", "3")
    run = start_tiny(tmp_path / "run", *flags, mode=None, **EXACT).finish(0)
    expected = dict(TinyRun.at(killed / "alone").losses)
    assert dict(run.losses) == {step: pytest.approx(expected[step], rel=2e-5) for step in (1, 2, 3)}


@pytest.mark.soak
def test_preparers_of_a_local_cluster_tell_the_story_of_one_process(tmp_path, base_flags):
    flags = (*base_flags, *FLAGS, "--max-steps", "5")
    run = start_tiny(tmp_path / "run", *flags, "--cluster", "local", "--preparers", "2", mode=None).finish(0)
    assert "Preparers: up to 2, on the Ray cluster of this machine alone." in run.text
    assert run.story == run_tiny(tmp_path / "alone", *flags).story


@pytest.mark.soak
def test_ctrl_c_to_a_driver_that_has_just_begun_is_heard(tmp_path, base_flags):
    live = start_tiny(tmp_path / "run", *base_flags, *FLAGS, *TRAINERS, "--max-steps", "100000")
    said = live.run.told.with_name("run.said")
    live.strike(lambda: "Mode    cluster" in said.read_text(), signal.SIGINT)
    run = live.finish(128 + signal.SIGINT)
    assert not (run.folder / "metrics.jsonl").exists() or run.losses == []
    assert "Traceback" not in run.text
