"""Several trainers of one run, as real processes on loopback: the same losses as one, and an end that is told when one dies."""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.cluster.test_link import find_ports
from tests.support.faults import Fault
from tests.support.tiny_run import (
    LiveRun,
    TinyRun,
    at_step,
    count_steps,
    in_saving,
    leaves_nothing,
    list_processes,
    run_tiny,
    tiny_words,
    wait_for,
)
from tests.training.test_run_decoder import FLAGS as DECODER_FLAGS
from tests.training.test_run_decoder import SETTINGS as DECODER_SETTINGS

STEPS = 3
ENDLESS = ("--max-steps", "100000")
FLAGS = (
    *("--grad-accum", "2", "--lr-schedule", "constant", "--validation-interval", "3", "--checkpoint-interval", "3"),
    *("--keep-last", "99"),
)
EXACT = {"model.dropout": 0}
"""Masks are drawn for a worker's own rows, so with dropout others are left out than by one process."""

MYXTTS = (sys.executable, "-m", "myxtts.cli.main")
OWN_NETWORK = () if os.getuid() == 0 else ("--open-ports",)
"""Where the kernel gives one to workers."""


def launch(folder, *flags, network=OWN_NETWORK, **settings):
    """Two workers that go on beside the test."""
    words = ["launch", "--workers", "2", *network, "--", "train", *tiny_words(folder, *flags, **settings)]
    return LiveRun(folder, [*MYXTTS, *words])


def find_worker(folder, index):
    """The process of a worker."""
    for process in list_processes(folder):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--worker-index" in words and words[words.index("--worker-index") + 1] == str(index):
                return process
    raise AssertionError(f"there is no worker {index}")


def read_workers(folder):
    return TinyRun.at(folder), TinyRun.at(folder / "worker-1")


def assert_same_losses(workers, alone, rel=2e-5):
    for read in ("losses", "validations"):
        expected = dict(getattr(alone, read))
        assert expected
        for worker in workers:
            found = dict(getattr(worker, read))
            for step, loss in expected.items():
                assert found[step] == pytest.approx(loss, rel=rel), (worker.folder.name, step)


def assert_saved_alike(folder):
    """Both workers have stopped at the same update, which is saved."""
    chief, other = read_workers(folder)
    assert chief.losses == other.losses
    assert chief.checkpoints[-1] == chief.losses[-1][0]


@pytest.fixture(scope="session")
def killed(share, base_flags):
    """Two workers; one is killed after some updates. Beside it the same updates by one process."""

    def make(folder):
        folder.mkdir()
        run_tiny(folder / "alone", *base_flags, *FLAGS, "--max-steps", STEPS, **EXACT)
        run = folder / "run"
        with leaves_nothing(run):
            # On the machine's own network, which is all that many containers have.
            live = launch(run, *base_flags, *FLAGS, *ENDLESS, network=("--open-ports",), **EXACT)
            live.wait_for(at_step(run, STEPS + 1))
            find_worker(run, 1).kill()
            # The first that ended badly is the one that was killed.
            live.finish(128 + signal.SIGKILL)

    return share("cluster", make)


@pytest.fixture
def alone(killed):
    return TinyRun.at(killed / "alone")


def test_the_losses_and_weights_are_those_of_one_process(killed, alone):
    assert_same_losses(read_workers(killed / "run"), alone)
    for name in ("model.safetensors", "training.safetensors"):
        one, shared = (load_file(killed / run / f"step-{STEPS:08d}" / name) for run in ("alone", "run"))
        assert one.keys() == shared.keys()
        for key, value in one.items():
            np.testing.assert_allclose(shared[key], value, rtol=2e-3, atol=2e-5, err_msg=key)


def test_together_they_train_on_as_many_clips(killed, alone):
    """The clip that cannot be read among them: whoever has it replaces it, as one process does."""
    assert TinyRun.at(killed / "run").counts[:STEPS] == alone.counts
    one, *shared = ((killed / run / "drop_report.json").read_text() for run in ("alone", "run", "run/worker-1"))
    assert "clip_05" in one
    assert any("clip_05" in text for text in shared)


def test_only_the_chief_keeps_the_run(killed):
    chief, other = read_workers(killed / "run")
    assert other.checkpoints == []
    assert not (other.folder / "run.json").exists()
    assert any(event.name == "checkpoint" for event in chief.events)
    assert all(list((worker.folder / "tensorboard").iterdir()) for worker in (chief, other)), "curves apart"


def test_when_a_worker_dies_the_others_say_so_and_end(killed):
    said = TinyRun.at(killed / "run").text
    assert "[0] myxtts train: error: Worker 1 at 127.0.0.1:" in said
    assert "is lost: its process has died, or the connection to it broke. Start the whole cluster again" in said
    assert "worker 1 was ended by signal 9" in said
    assert "To go on: myxtts launch --workers 2" in said
    assert "Traceback" not in said


@pytest.mark.soak
def test_a_cluster_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, base_flags):
    """With dropout, and with another worker killed each time: bit for bit the unbroken cluster."""
    flags = (*base_flags, *FLAGS, "--max-steps", "8")
    unbroken, broken = launch(tmp_path / "unbroken", *flags).finish(0), tmp_path / "broken"
    for index, step in ((1, 3), (0, 6)):
        live = launch(broken, *flags)
        live.wait_for(at_step(broken, step))
        find_worker(broken, index).kill()
        run = live.finish()
        assert run.code != 0
        assert f"error: Worker {index} {'(the chief) ' if index == 0 else ''}at 127.0.0.1:" in run.text
    assert launch(broken, *flags).finish(0).story == unbroken.story
    # Nothing is left to do, and no worker calls that a failure.
    assert launch(broken, *flags).finish(0).text.count("is finished: 8 updates are done") == 2


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 1])
def test_whoever_is_asked_to_stop_all_stop_at_the_same_update(tmp_path, base_flags, index):
    live = launch(tmp_path / "run", *base_flags, *FLAGS, *ENDLESS)
    live.wait_for(at_step(live.folder, 2))
    find_worker(live.folder, index).send_signal(signal.SIGTERM)
    run = live.finish(os.EX_TEMPFAIL)
    assert_saved_alike(run.folder)
    assert "Resume  myxtts launch --workers 2" in run.text
    assert "worker 1 stopped as it was asked to" in run.text


def start_workers(folders, *flags, silence_s=60, fault=None, **settings):
    """Two workers without a launcher, each in a folder of its own; the second may have a fault."""
    control, *ports = find_ports(3)
    cluster = folders[0].with_name("cluster.yaml")
    workers = ", ".join(f"127.0.0.1:{port}" for port in ports)
    cluster.write_text(
        f"workers: [{workers}]\ncontrol: 127.0.0.1:{control}\nsilence_seconds: {silence_s}\n", encoding="utf-8"
    )
    programs = [(*MYXTTS, "train"), (*MYXTTS, "train")]
    if fault is not None:
        programs[1] = (sys.executable, "-m", "tests.support.faults", *fault)
    return [
        LiveRun(
            folder, [*program, *tiny_words(folder, *flags, "--cluster", cluster, "--worker-index", index, **settings)]
        )
        for index, (folder, program) in enumerate(zip(folders, programs, strict=True))
    ]


@pytest.fixture
def folders(tmp_path):
    return [tmp_path / "chief", tmp_path / "other"]


def start_by_tf_config(folders, *flags, **settings):
    """Workers told by the variable that other launchers of TensorFlow set."""
    addresses = [f"127.0.0.1:{port}" for port in find_ports_with_one_above(len(folders))]
    tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": n}} for n in range(len(folders))]
    return [
        LiveRun(folder, [*MYXTTS, "train", *tiny_words(folder, *flags, **settings)], TF_CONFIG=json.dumps(task))
        for folder, task in zip(folders, tasks, strict=True)
    ]


def find_ports_with_one_above(count):
    """Free ports; above the first, where workers meet the chief, is a free one too."""
    while True:
        first, *others = find_ports(count)
        with suppress(OSError), socket.create_server(("127.0.0.1", first + 1)):
            if first + 1 not in others:
                return [first, *others]


@pytest.mark.soak
def test_workers_may_prepare_in_processes_of_their_own_and_keep_folders_apart(tmp_path, base_flags, alone):
    """Three workers in the isolated mode, each with a folder that no other one sees; one of them goes on alone."""
    flags = (*base_flags, *FLAGS)
    folders = [tmp_path / f"machine-{index}" for index in range(3)]
    for live in start_by_tf_config(folders, *flags, "--max-steps", STEPS, mode="isolated", **EXACT):
        live.finish(0)
    places = (folders[0], folders[1] / "worker-1", folders[2] / "worker-2")
    assert_same_losses([TinyRun.at(place) for place in places], alone)
    run = run_tiny(folders[0], *flags, "--max-steps", STEPS + 1, **EXACT)
    assert "only equal up to rounding: workers was 3, now null" in run.text


@pytest.mark.soak
def test_a_chief_that_dies_in_its_last_save_takes_the_others_with_it(folders, base_flags):
    """One that had left as finished would not be started again, and the chief would wait for it in vain."""
    chief, other = start_workers(folders, *base_flags, *FLAGS, "--max-steps", "2")
    chief.strike(in_saving(folders[0]), signal.SIGKILL)
    assert "Worker 0 (the chief) at 127.0.0.1:" in other.finish(1).text
    chief.finish(-signal.SIGKILL)


@pytest.mark.soak
def test_a_worker_that_runs_out_of_memory_does_not_go_on_alone(folders, base_flags):
    fault = Fault("computing gradients", "runs out of memory", 3)
    chief, other = start_workers(folders, *base_flags, *FLAGS, "--max-steps", "4", fault=fault)
    said = other.finish(1).text
    assert "Out of memory in step 1" in said
    assert "--batch-size" in said
    assert "--on-oom" not in said, "others would have to cut their batches too"
    assert "is lost: Out of memory" in chief.finish(1).text


@pytest.mark.soak
def test_a_worker_that_hangs_is_lost_after_the_silence_that_was_set(folders, base_flags):
    """Stopped, not dead: its connections stay, so nothing but its silence tells, in the midst of a sum.

    A shorter pause than that is none, though it is longer than the 10 s that TensorFlow itself would wait.
    """
    chief, other = start_workers(folders, *base_flags, *FLAGS, *ENDLESS, silence_s=25)
    chief.wait_for(at_step(folders[0], 2))
    other.process.send_signal(signal.SIGSTOP)
    time.sleep(15)
    other.process.send_signal(signal.SIGCONT)
    more = count_steps(folders[0]) + 5
    chief.wait_for(lambda: count_steps(folders[0]) >= more)
    other.process.send_signal(signal.SIGSTOP)
    try:
        said = chief.finish(1).text
    finally:
        other.process.kill()
        other.process.wait()
    assert "is lost: nothing was heard of it for 25 s. Start the whole cluster again" in said


@pytest.mark.soak
@pytest.mark.parametrize(("strike", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_workers_whose_launcher_is_killed_or_interrupted_save_the_run_and_end(tmp_path, base_flags, strike, code):
    live = launch(tmp_path / "run", *base_flags, *FLAGS, *ENDLESS)
    with leaves_nothing(live.folder):
        live.strike(at_step(live.folder, 2), strike)
        live.finish(code)
        wait_for(lambda: not list_processes(live.folder), lambda: True, "workers are left")
    assert_saved_alike(live.folder)


@pytest.mark.soak
def test_a_decoder_is_trained_by_several_as_by_one(tmp_path, codec_run, unbroken):
    flags = (*DECODER_FLAGS, "--train-data", codec_run / "corpus", "--init-from", unbroken.folder, "--max-steps", "2")
    alone = run_tiny(tmp_path / "alone", *flags, **DECODER_SETTINGS)
    run = launch(tmp_path / "run", *flags, **DECODER_SETTINGS).finish(0)
    assert_same_losses(read_workers(run.folder), alone, rel=1e-4)
