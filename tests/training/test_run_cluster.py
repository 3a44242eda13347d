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
from tests.training.strikes import at_step, count_steps, in_saving, leaves_nothing, list_processes, strike, wait_for
from tests.training.test_run_decoder import FLAGS as DECODER_FLAGS
from tests.training.test_run_decoder import SETTINGS as DECODER_SETTINGS

STEPS = 3
FLAGS = (
    *("--mode", "single", "--grad-accum", "2", "--lr-schedule", "constant"),
    *("--validation-interval", "3", "--checkpoint-interval", "3", "--keep-last", "99"),
)
EXACT = {"model.dropout": 0}
"""Masks are drawn for a worker's own rows, so with dropout others are left out than by one process."""

TRAIN = (sys.executable, "-m", "myxtts.cli.main", "train")
OWN_NETWORK = () if os.getuid() == 0 else ("--open-ports",)
"""Where the kernel gives one to workers."""


def launch(folder, *flags, network=OWN_NETWORK, **settings):
    """Two workers that go on beside the test; what they say goes to `<folder>.said`."""
    launcher = [sys.executable, "-m", "myxtts.cli.main", "launch", "--workers", "2", *network]
    return start_command(folder, [*launcher, "--", "train", *make_words(folder, *flags, **settings)])


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
    """Two workers; one is killed after some updates. Beside it the same updates by one process."""

    def make(folder):
        folder.mkdir()
        train(folder / "alone", *base_flags, *FLAGS, "--max-steps", STEPS, **EXACT)
        run = folder / "run"
        with leaves_nothing(run):
            # On the machine's own network, which is all that many containers have.
            started = launch(run, *base_flags, *FLAGS, "--max-steps", "100000", network=("--open-ports",), **EXACT)
            await_step(started, run, STEPS + 1)
            find_worker(run, 1).kill()
            code, text = finish(started, run)
        facts = {"code": code, "text": text}
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")

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


def test_together_they_train_on_as_many_clips(killed):
    """The clip that cannot be read among them: whoever has it replaces it, as one process does."""
    assert read_counts(killed / "run")[:STEPS] == read_counts(killed / "alone")
    alone, *shared = ((killed / run / "drop_report.json").read_text() for run in ("alone", "run", "run/worker-1"))
    assert "clip_05" in alone
    assert any("clip_05" in text for text in shared)


def test_only_the_chief_keeps_the_run(killed):
    assert not list((killed / "run" / "worker-1").glob("step-*"))
    assert not (killed / "run" / "worker-1" / "run.json").exists()
    assert any(event.name == "checkpoint" for event in read_events(killed / "run"))


def read_facts(killed):
    return json.loads((killed / "facts.json").read_text(encoding="utf-8"))


def test_when_a_worker_dies_the_others_say_so_and_end(killed):
    facts = read_facts(killed)
    said = facts["text"]
    # The first that ended badly is the one that was killed.
    assert facts["code"] == 128 + signal.SIGKILL
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
    assert said.code == os.EX_TEMPFAIL, said.text[-3000:]
    assert read_losses(run) == read_losses(run / "worker-1")
    newest = max(run.glob("step-*")).name
    assert newest == f"step-{read_losses(run)[-1][0]:08d}", "the last update is saved"
    assert "Resume  myxtts launch --workers 2" in said.text
    assert "worker 1 stopped as it was asked to" in said.text


def start_workers(folders, *flags, size, silence_s=60, **settings):
    """Workers without a launcher, each in a folder of its own."""
    control, *ports = find_ports(size + 1)
    cluster = folders[0].with_name("cluster.yaml")
    workers = ", ".join(f"127.0.0.1:{port}" for port in ports)
    cluster.write_text(
        f"workers: [{workers}]\ncontrol: 127.0.0.1:{control}\nsilence_seconds: {silence_s}\n", encoding="utf-8"
    )
    own = [("--cluster", cluster, "--worker-index", index) for index in range(size)]
    return [
        start_command(folder, [*TRAIN, *make_words(folder, *flags, *words, **settings)])
        for folder, words in zip(folders, own, strict=True)
    ]


def start_by_tf_config(folders, *flags, **settings):
    """The same, told by the variable that other launchers of TensorFlow set."""
    addresses = [f"127.0.0.1:{port}" for port in find_ports_with_one_above(len(folders))]
    return [
        start_command(
            folder,
            [*TRAIN, *make_words(folder, *flags, **settings)],
            TF_CONFIG=json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}),
        )
        for index, folder in enumerate(folders)
    ]


def find_ports_with_one_above(count):
    """Free ports; above the first, where workers meet the chief, is a free one too."""
    while True:
        first, *others = find_ports(count)
        with suppress(OSError), socket.create_server(("127.0.0.1", first + 1)):
            if first + 1 not in others:
                return [first, *others]


@pytest.mark.soak
def test_workers_may_prepare_in_processes_of_their_own_and_keep_folders_apart(tmp_path, base_flags):
    """Three workers in the isolated mode, told by `TF_CONFIG`, each with a folder that no other one sees; one of them goes on alone."""
    alone = tmp_path / "alone"
    flags = (*base_flags, *FLAGS[2:])
    train(alone, *flags, "--max-steps", "3", "--mode", "single", **EXACT)
    folders = [tmp_path / f"machine-{index}" for index in range(3)]
    runs = start_by_tf_config(folders, *flags, "--max-steps", "3", "--mode", "isolated", **EXACT)
    for run, folder in zip(runs, folders, strict=True):
        said = finish(run, folder)
        assert said.code == 0, said.text[-3000:]
    expected = dict(read_losses(alone))
    for folder in (folders[0], folders[1] / "worker-1", folders[2] / "worker-2"):
        assert dict(read_losses(folder)) == {step: pytest.approx(loss, rel=2e-5) for step, loss in expected.items()}
    said = train(folders[0], *flags, "--max-steps", "4", "--mode", "single", **EXACT)
    assert "only equal up to rounding: workers was 3, now null" in said


@pytest.mark.soak
def test_a_chief_that_dies_in_its_last_save_takes_the_others_with_it(tmp_path, base_flags):
    """One that had left as finished would not be started again, and the chief would wait for it in vain."""
    folders = [tmp_path / "chief", tmp_path / "other"]
    runs = start_workers(folders, *base_flags, *FLAGS, "--max-steps", "2", size=2)
    strike(runs[0], in_saving(folders[0]), signal.SIGKILL)
    said = finish(runs[1], folders[1])
    assert finish(runs[0], folders[0]).code == -signal.SIGKILL
    assert said.code == 1, said.text[-3000:]
    assert "Worker 0 (the chief) at 127.0.0.1:" in said.text


@pytest.mark.soak
def test_a_worker_that_hangs_is_lost_after_the_silence_that_was_set(tmp_path, base_flags):
    """Stopped, not dead: its connections stay, so nothing but its silence tells, in the midst of a sum.

    A shorter pause than that is none, though it is longer than the 10 s that TensorFlow itself would wait.
    """
    folders = [tmp_path / "chief", tmp_path / "other"]
    runs = start_workers(folders, *base_flags, *FLAGS, "--max-steps", "100000", size=2, silence_s=25)
    await_step(runs[0], folders[0], 2)
    runs[1].send_signal(signal.SIGSTOP)
    time.sleep(15)
    runs[1].send_signal(signal.SIGCONT)
    more = count_steps(folders[0]) + 5
    wait_for(lambda: count_steps(folders[0]) >= more, lambda: runs[0].poll() is None, "the pause has ended the run")
    runs[1].send_signal(signal.SIGSTOP)
    try:
        said = finish(runs[0], folders[0])
    finally:
        runs[1].kill()
        runs[1].wait()
    assert said.code == 1
    assert "is lost: nothing was heard of it for 25 s. Start the whole cluster again" in said.text


@pytest.mark.soak
def test_workers_whose_launcher_is_killed_save_the_run_and_end(tmp_path, base_flags):
    run = tmp_path / "run"
    with leaves_nothing(run):
        started = launch(run, *base_flags, *FLAGS, "--max-steps", "100000")
        strike(started, at_step(run, 2), signal.SIGKILL)
        assert finish(started, run).code == -signal.SIGKILL
        wait_for(lambda: not list_processes(run), lambda: True, "workers are left")
    assert read_losses(run) == read_losses(run / "worker-1")
    assert max(run.glob("step-*")).name == f"step-{read_losses(run)[-1][0]:08d}", "the last update is saved"


@pytest.mark.soak
def test_a_decoder_is_trained_by_several_as_by_one(tmp_path, codec_run, unbroken):
    corpus = ("--train-data", codec_run / "corpus", "--init-from", unbroken)
    flags = (*DECODER_FLAGS, *corpus, "--max-steps", "2")
    train(tmp_path / "alone", *flags, **DECODER_SETTINGS)
    run = tmp_path / "run"
    said = finish(launch(run, *flags, **DECODER_SETTINGS), run)
    assert said.code == 0, said.text[-3000:]
    for read in (read_losses, read_validations):
        expected = dict(read(tmp_path / "alone"))
        assert expected
        for folder in (run, run / "worker-1"):
            assert dict(read(folder)) == {step: pytest.approx(loss, rel=1e-4) for step, loss in expected.items()}


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
    assert "Mode    data-parallel: 2 workers" in said.text
    assert len(read_losses(run)) == len(read_losses(run / "worker-1")) == 2
