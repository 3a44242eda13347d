"""Several trainers of one run, as real processes on loopback: the same losses as one, and an end that is told when one dies."""

import json
import os
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.cluster.test_link import find_ports
from tests.training.runs import (
    finish,
    make_words,
    read_counts,
    read_events,
    read_losses,
    read_story,
    read_validations,
    start_command,
    train,
)
from tests.training.strikes import at_step, leaves_nothing, list_processes, strike, wait_for

STEPS = 3
FLAGS = (
    *("--mode", "single", "--grad-accum", "2", "--lr-schedule", "constant"),
    *("--validation-interval", "3", "--checkpoint-interval", "3", "--keep-last", "99"),
)
EXACT = {"model.dropout": 0}
"""Masks are drawn for a worker's own rows, so with dropout others are left out than by one process."""


def launch(folder, *flags, workers=2, more=(), **settings):
    """Workers that go on beside the test; what they say goes to `<folder>.said`."""
    launcher = [sys.executable, "-m", "myxtts.cli.main", "launch", "--workers", str(workers), *launch_flags(), *more]
    return start_command(folder, [*launcher, "--", "train", *make_words(folder, *flags, **settings)])


def launch_flags():
    """A network of their own where the kernel gives one to them."""
    return () if os.getuid() == 0 else ("--open-ports",)


def await_step(launcher, folder, step):
    wait_for(at_step(folder, step), lambda: launcher.poll() is None, "the workers ended by themselves")


def find_worker(folder, index):
    """The process of a worker."""
    for process in list_processes(folder):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--worker-index" in words and words[words.index("--worker-index") + 1] == str(index):
                return process
    raise AssertionError(f"there is no worker {index}")


@pytest.fixture(scope="session")
def killed(share, base_flags):
    """Two workers, of which one is killed after some updates; beside it the same updates by one process."""

    def make(folder):
        folder.mkdir()
        train(folder / "alone", *base_flags, *FLAGS, "--max-steps", STEPS, **EXACT)
        run = folder / "run"
        with leaves_nothing(run):
            started = launch(run, *base_flags, *FLAGS, "--max-steps", "100000", **EXACT)
            await_step(started, run, STEPS + 1)
            find_worker(run, 1).kill()
            said = finish(started, run)
        (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")

    return share("cluster", make)


def test_the_losses_are_those_of_one_process(killed):
    for read in (read_losses, read_validations):
        expected = dict(read(killed / "alone"))
        for folder in (killed / "run", killed / "run" / "worker-1"):
            found = dict(read(folder))
            for step, loss in expected.items():
                assert found[step] == pytest.approx(loss, rel=2e-5), (folder.name, step)


def test_so_are_the_weights(killed):
    for name in ("model.safetensors", "training.safetensors"):
        alone, shared = (load_file(killed / run / f"step-{STEPS:08d}" / name) for run in ("alone", "run"))
        assert alone.keys() == shared.keys()
        for key, value in alone.items():
            np.testing.assert_allclose(shared[key], value, rtol=2e-3, atol=2e-5, err_msg=key)


def test_together_they_train_on_every_clip_once(killed):
    """The clip that cannot be read among them: whoever has it replaces it, as one process does."""
    assert read_counts(killed / "run")[:STEPS] == read_counts(killed / "alone")
    replaced = [(killed / run / "drop_report.json").read_text() for run in ("alone", "run", "run/worker-1")]
    assert ["clip_05" in text for text in replaced].count(True) >= 1


def test_only_the_chief_keeps_the_run(killed):
    assert not list((killed / "run" / "worker-1").glob("step-*"))
    assert not (killed / "run" / "worker-1" / "run.json").exists()
    assert any(event.name == "checkpoint" for event in read_events(killed / "run"))


def test_when_a_worker_dies_the_others_say_so_and_end(killed):
    code, said = json.loads((killed / "said.json").read_text(encoding="utf-8"))
    assert code == 1
    assert "[0] myxtts train: error: Worker 1 at 127.0.0.1:" in said
    assert "is lost: its process has died, or the connection to it broke. Start the whole cluster again" in said
    assert "worker 1 was ended by signal 9" in said
    assert "To go on: myxtts launch --workers 2" in said
    assert "Traceback" not in said


@pytest.mark.soak
def test_a_cluster_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, base_flags):
    """With dropout, and with another worker killed each time: bit for bit the unbroken cluster."""
    flags = (*base_flags, *FLAGS, "--max-steps", "8")
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert finish(launch(unbroken, *flags), unbroken).code == 0
    for index, step in ((1, 3), (0, 6)):
        run = launch(broken, *flags)
        await_step(run, broken, step)
        find_worker(broken, index).kill()
        said = finish(run, broken)
        assert said.code != 0
        assert f"error: Worker {index} {'(the chief) ' if index == 0 else ''}at 127.0.0.1:" in said.text
    assert finish(launch(broken, *flags), broken).code == 0
    assert read_story(broken) == read_story(unbroken)
    # Nothing is left to do, and no worker calls that a failure.
    said = finish(launch(broken, *flags), broken)
    assert said.code == 0
    assert said.text.count("is finished: 8 updates are done") == 2


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 1])
def test_whoever_is_asked_to_stop_all_stop_at_the_same_update(tmp_path, base_flags, index):
    run = tmp_path / "run"
    started = launch(run, *base_flags, *FLAGS, "--max-steps", "100000")
    await_step(started, run, 2)
    find_worker(run, index).send_signal(signal.SIGTERM)
    said = finish(started, run)
    assert said.code == 0, said.text[-3000:]
    assert read_losses(run) == read_losses(run / "worker-1")
    newest = max(run.glob("step-*")).name
    assert newest == f"step-{read_losses(run)[-1][0]:08d}", "the last update is saved"
    assert "Resume  myxtts launch --workers 2" in said.text


def start_workers(folders, *flags, size, silence_s=60, **settings):
    """Workers without a launcher, each in a folder of its own."""
    control, *ports = find_ports(size + 1)
    cluster = folders[0].with_name("cluster.yaml")
    workers = ", ".join(f"127.0.0.1:{port}" for port in ports)
    cluster.write_text(
        f"workers: [{workers}]\ncontrol: 127.0.0.1:{control}\nsilence_seconds: {silence_s}\n", encoding="utf-8"
    )
    program = (sys.executable, "-m", "myxtts.cli.main", "train")
    own = [("--cluster", cluster, "--worker-index", index) for index in range(size)]
    return [
        start_command(folder, [*program, *make_words(folder, *flags, *words, **settings)])
        for folder, words in zip(folders, own, strict=True)
    ]


@pytest.mark.soak
def test_workers_may_prepare_in_processes_of_their_own_and_keep_folders_apart(tmp_path, base_flags):
    """Three workers in the isolated mode, each with a folder that no other one sees; one of them goes on alone."""
    alone = tmp_path / "alone"
    flags = (*base_flags, *FLAGS[2:])
    train(alone, *flags, "--max-steps", "3", "--mode", "single", **EXACT)
    folders = [tmp_path / f"machine-{index}" for index in range(3)]
    runs = start_workers(folders, *flags, "--max-steps", "3", "--mode", "isolated", size=3, **EXACT)
    for run, folder in zip(runs, folders, strict=True):
        said = finish(run, folder)
        assert said.code == 0, said.text[-3000:]
    expected = dict(read_losses(alone))
    for folder in (folders[0], folders[1] / "worker-1", folders[2] / "worker-2"):
        assert dict(read_losses(folder)) == {step: pytest.approx(loss, rel=2e-5) for step, loss in expected.items()}
    said = train(folders[0], *flags, "--max-steps", "4", "--mode", "single", **EXACT)
    assert "only equal up to rounding: workers was 3, now null" in said


@pytest.mark.soak
def test_a_worker_that_hangs_is_lost_after_the_silence_that_was_set(tmp_path, base_flags):
    """Stopped, not dead: its connections stay, so nothing but its silence tells, in the midst of a sum."""
    folders = [tmp_path / "chief", tmp_path / "other"]
    runs = start_workers(folders, *base_flags, *FLAGS, "--max-steps", "100000", size=2, silence_s=5)
    await_step(runs[0], folders[0], 2)
    runs[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        said = finish(runs[0], folders[0])
    finally:
        runs[1].kill()
        runs[1].wait()
    assert said.code == 1
    assert "is lost: nothing was heard of it for 5 s. Start the whole cluster again" in said.text
    assert time.monotonic() - began < 90


@pytest.mark.soak
def test_an_interrupt_of_the_launcher_saves_the_run(tmp_path, base_flags):
    run = tmp_path / "run"
    started = launch(run, *base_flags, *FLAGS, "--max-steps", "100000")
    strike(started, at_step(run, 2), signal.SIGINT)
    said = finish(started, run)
    assert said.code == 130, said.text[-3000:]
    assert read_losses(run) == read_losses(run / "worker-1")


@pytest.mark.soak
def test_several_model_gpus_are_a_worker_for_each(tmp_path, base_flags):
    run = tmp_path / "run"
    words = make_words(run, *base_flags, *FLAGS, "--max-steps", "2", "--model-gpus", "0,1", **EXACT)
    said = finish(start_command(run, [sys.executable, "train_main.py", *words]), run)
    assert said.code == 0, said.text[-3000:]
    assert "Mode    parallel: 2 workers" in said.text
    assert len(read_losses(run)) == len(read_losses(run / "worker-1")) == 2
