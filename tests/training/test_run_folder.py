"""A run goes on where it was, is refused where it must be, says when it is finished, and is never overwritten."""

import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from myxtts.config import XTTSConfig
from myxtts.errors import RunChangedError, RunFinishedError, RunFolderError
from myxtts.training import run_folder
from myxtts.training.run_folder import open_run
from tests.checkpoints.training_states import assert_content, save
from tests.support.kills import kill_before_line, run_killed
from tests.support.processes import ROOT, clean_environ, run_code

COMMAND = ("python", "train_main.py", "--train-data", "my voice", "--reset-training")
ENVIRONMENT = {"tensorflow": "2.21", "threads": 2}
PATIENT = {"early_stopping": 3, "epochs": 5}
RESET = {"resume": "reset"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def open_with(folder, *, checkpoint=None, model=None, data=None, **training):
    config = XTTSConfig(
        model={"size": "tiny", **(model or {})}, data=data or {}, training={"checkpoint_dir": str(folder), **training}
    )
    return open_run(config, command=COMMAND, checkpoint=checkpoint)


def open_once(folder, **settings):
    with open_with(folder, **settings):
        pass


def fill(run, *steps, end_step=100, ending=None, is_early=False):
    """Begins a run and saves it at these steps; the step it begins with."""
    first = run.begin(end_step, ENVIRONMENT)
    for step in steps:
        save(run.store, step, val_loss=1.0)
    if ending:
        run.finish(ending, is_early=is_early)
    return first


def train(folder, *steps, end_step=100, ending=None, is_early=False, **settings):
    with open_with(folder, **settings) as run:
        return fill(run, *steps, end_step=end_step, ending=ending, is_early=is_early)


def finish(folder, step, **settings):
    train(folder, step, end_step=step, ending="all updates are done", **settings)


def train_codec(run, *steps, **options):
    with run.open_codec() as codec:
        return fill(codec, *steps, **{"end_step": 30, **options})


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def read_record(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_new_run_begins_with_step_0_and_goes_on_from_its_newest_checkpoint(folder, caplog):
    with open_with(folder) as run:
        assert (run.step, run.is_resumed, run.is_finished, run.checkpoint) == (0, False, False, None)
        assert run.begin(100, ENVIRONMENT) == 0
        assert run.resume_command == "python train_main.py --train-data 'my voice' --resume"
    record = read_record(folder)
    assert record["status"] == "unfinished"
    assert (record["stage"], record["end_step"], record["environment"]) == ("gpt", 100, ENVIRONMENT)
    assert record["config"]["training"]["learning_rate"] == 1e-3
    assert [start["command"] for start in record["starts"]] == [list(COMMAND)]
    train(folder, 10, 20)
    caplog.clear()
    with caplog.at_level(logging.INFO, "myxtts"), open_with(folder) as run:
        assert run.is_resumed
        assert run.begin(100, ENVIRONMENT) == 20
        assert_content(run.checkpoint)
        assert run.list_lengths(300) == [(0, 100), (0, 100), (20, 100), (20, 300)], "each start as long as it was then"
    assert caplog.messages == [f"The run in {folder} goes on at step 20 of 100."]


def test_a_run_killed_before_its_first_checkpoint_begins_again_with_any_settings(folder):
    train(folder)
    assert train(folder, seed=5, resume="require") == 0
    assert read_record(folder)["config"]["training"]["seed"] == 5


def test_resume_demands_a_run_and_makes_no_folder(folder):
    with pytest.raises(RunFolderError, match="there is no run to resume"):
        open_once(folder, resume="require")
    assert not folder.exists()
    open_once(folder)
    with pytest.raises(RunFolderError, match=r"the one in it ended before its first step.*leave out --resume"):
        open_once(folder, resume="require")
    with open_with(folder) as run:
        train_codec(run)
    with open_with(folder, resume="require") as run:
        assert run.step == 0, "its codec has begun"


def test_what_may_change_is_in_force_and_noted(folder, caplog):
    train(folder, 10)
    train(folder, epochs=7)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], "it moves no end"
    with open_with(folder, data={"num_workers": 3, "enable_xla": True}, epochs=7, keep_last=1) as run:
        run.begin(70, {**ENVIRONMENT, "threads": 4})
        assert run.record.config["data"]["num_workers"] == 3
        save(run.store, 20)
        save(run.store, 30)
        assert [checkpoint.step for checkpoint in run.store.list()] == [10, 30], "10 is the best"
    rounding, moved = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "data.enable_xla was auto, now true; threads was 2, now 4" in rounding
    assert "neither that of 100 updates nor that of 70 in one go" in moved


def test_a_finished_run_says_so_and_how_to_train_longer(folder):
    length = {"epochs": 5, "max_steps": 50, "early_stopping": 3}
    finish(folder, 50, **length)
    assert read_record(folder)["status"] == "finished"
    for resume in ("auto", "require"):
        with pytest.raises(RunFinishedError) as caught:
            open_once(folder, **length, resume=resume)
        assert str(caught.value) == (
            f"The run in {folder} is finished: 50 updates are done (all updates are done). To train longer, give a larger "
            "--epochs (now 5) or a larger --max-steps (now 50): it goes on from there. To train anew, give --reset-training, "
            "which keeps this run aside, or another --checkpoint-dir."
        )
        assert (caught.value.exit_code, caught.value.step, caught.value.folder) == (0, 50, folder)
    with pytest.raises(RunChangedError, match=r"training\.seed was 0, now 1"):
        open_once(folder, **length, seed=1)


def test_another_length_continues_a_finished_run_or_finds_nothing_left_to_do(folder):
    finish(folder, 50, max_steps=50)
    with open_with(folder, max_steps=20) as run, pytest.raises(RunFinishedError, match="50 updates"):
        run.begin(20, ENVIRONMENT)
    assert train(folder, 80, end_step=80, ending="all updates are done", max_steps=80) == 50
    with pytest.raises(RunFinishedError, match="80 updates"):
        open_once(folder, max_steps=80)


def test_a_run_stopped_early_goes_on_with_more_patience_and_not_by_its_length(folder):
    train(folder, 50, ending="no better loss in 3 validations", is_early=True, **PATIENT)
    for change in ({}, {"epochs": 50}, {"max_steps": 900}, {"early_stopping": 2}):
        with pytest.raises(RunFinishedError) as caught:
            open_once(folder, **{**PATIENT, **change})
        said = str(caught.value)
        assert "50 updates are done (no better loss in 3 validations)" in said
        assert "ended by --early-stopping 3, so a larger number of epochs or steps does not change that" in said
        assert "a larger --epochs" not in said
    # The second time it was killed again before its end.
    for patience in (9, 0):
        assert train(folder, **{**PATIENT, "early_stopping": patience}) == 50


def test_reset_keeps_every_old_run_aside_and_each_can_go_on_in_its_place(folder, caplog):
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    own = ["checkpoints.json", "metrics.jsonl", "run.json"]
    for seed in (1, 2, 3):
        with caplog.at_level(logging.INFO, "myxtts"), open_with(folder, seed=seed, **RESET) as run:
            (folder / "metrics.jsonl").write_text(f"of seed {seed}")
            assert fill(run, seed) == 0
    assert list_names(folder) == sorted(
        [*own, "previous-run-1", "previous-run-2", "run.lock", "step-00000003", "thesis.tex"]
    )
    for number in (1, 2):
        kept = folder / f"previous-run-{number}"
        assert list_names(kept) == [*own, f"step-{number:08d}"]
        assert (kept / "metrics.jsonl").read_text() == f"of seed {number}"
        assert train(kept, seed=number) == number
    assert f"The run that was in {folder} is kept in {folder / 'previous-run-2'}." in caplog.messages


def test_reset_of_nothing_or_of_a_run_that_never_trained_keeps_nothing(folder):
    for seed in (1, 2):
        with open_with(folder, seed=seed, **RESET) as run:
            assert run.step == 0
            (folder / "vocab.json").touch()
    assert list_names(folder) == ["run.json", "run.lock", "vocab.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "myxtts run", "version": 1}', None], ids=str)
def test_a_folder_without_a_readable_record_is_not_guessed_at(folder, content):
    folder.mkdir()
    (folder / "thesis.tex").touch()
    train(folder, 10)
    if content is None:
        (folder / "run.json").unlink()
    else:
        (folder / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"run\.json.*--reset-training"):
        open_once(folder)
    with open_with(folder, **RESET) as run:
        assert run.step == 0
    assert list_names(folder) == ["previous-run-1", "run.json", "run.lock", "thesis.tex"]
    assert "step-00000010" in list_names(folder / "previous-run-1")


def test_a_record_of_a_newer_myxtts_is_not_touched(folder):
    train(folder, 10)
    (folder / "run.json").write_text(json.dumps(read_record(folder) | {"version": 2}))
    with pytest.raises(RunFolderError, match=r"of version 2.*Update MyXTTS"):
        open_once(folder)


HOLDER = """
import subprocess, sys
from myxtts.config import XTTSConfig
from myxtts.training import run_folder
from myxtts.training.run_folder import open_run
run = open_run(XTTSConfig(model={{"size": "tiny"}}, training={{"checkpoint_dir": {folder!r}}}), command=["x"])
run.__enter__()
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_second_trainer_is_told_who_is_there_and_death_frees_the_folder_even_when_a_child_lives_on(folder):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(folder=str(folder))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**clean_environ(), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    with holder:
        child = int(holder.stdout.readline())
        with pytest.raises(RunFolderError, match=rf"process {holder.pid} on .*, trains in this folder. Wait"):
            open_once(folder)
        # The child's end of the pipe dies with the holder; stopped, it lives on regardless.
        os.kill(child, signal.SIGSTOP)
        try:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            open_once(folder)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_said(folder, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    open_once(folder)
    assert "knows no locks (No locks available)" in caplog.text


def test_a_run_that_cannot_be_moved_is_said(tmp_path, monkeypatch):
    train(tmp_path / "run", 10)
    monkeypatch.setattr(Path, "rename", lambda path, target: os.rename(path, "/proc/target"))
    with pytest.raises(RunFolderError, match="the old run cannot be kept aside"):
        open_once(tmp_path / "run", **RESET)


@pytest.mark.parametrize(("ending", "is_early"), [(None, False), ("an ending", False), ("an ending", True)])
def test_a_run_goes_on_from_an_older_checkpoint_that_is_named(folder, ending, is_early):
    train(folder, 20, 40, 60, end_step=60, ending=ending, is_early=is_early, **PATIENT)
    if ending:
        with pytest.raises(RunFinishedError):
            open_once(folder, checkpoint=folder / "step-00000060", **PATIENT)
    with open_with(folder, checkpoint=folder / "step-00000040", **PATIENT) as run:
        assert run.begin(60, ENVIRONMENT) == 40
    assert "newer-step-00000060" in list_names(folder)
    with pytest.raises(RunFolderError, match=r"0060: is no whole checkpoint .*has: step-00000020, step-00000040"):
        open_once(folder, checkpoint=folder / "step-00000060", **PATIENT)
    assert train(folder, **PATIENT) == 40


def test_the_codec_has_a_folder_and_checkpoints_of_its_own(folder):
    with open_with(folder) as run:
        assert train_codec(run, 10) == 0
        assert run.store.list() == []
    with (
        open_with(folder, data={"batch_size": 4}) as run,
        pytest.raises(RunChangedError, match=rf"The run in {folder}/codec cannot go on[^$]*data\.batch_size"),
    ):
        train_codec(run)
    # While it is trained, it does not mind the GPT.
    with open_with(folder, model={"gpt_layers": 2, "dropout": 0.5}) as run:
        assert train_codec(run, 20, 30, ending="all updates are done") == 10
        with run.open_codec() as codec:
            assert codec.path == folder / "codec"
            assert codec.is_finished
            assert_content(codec.checkpoint)
            assert codec.record.config["training"]["stage"] == "codec"
    # Once it is trained only its shape matters.
    with open_with(folder, data={"batch_size": 4}, model={"gpt_layers": 2}) as run, run.open_codec() as codec:
        assert codec.is_finished
    with open_with(folder, model={"dvae_width": 64}) as run, pytest.raises(RunChangedError, match=r"model\.dvae_width"):
        train_codec(run)
    with open_with(folder, **RESET) as run:
        assert train_codec(run) == 0
    assert (folder / "previous-run-1" / "codec" / "step-00000030").is_dir()


def test_a_finished_codec_run_says_how_it_is_trained_longer(folder):
    codec = {"stage": "codec", "codec_steps": 30}
    finish(folder, 30, **codec)
    with pytest.raises(RunFinishedError, match=r"give a larger --codec-steps \(now 30\): it goes on"):
        open_once(folder, **codec)
    assert train(folder, end_step=60, stage="codec", codec_steps=60) == 30


@pytest.mark.parametrize("ending", ["all updates are done", None], ids=["finished", "killed after its last checkpoint"])
def test_a_longer_codec_is_trained_on_until_the_gpt_has_seen_its_codes(folder, ending):
    with open_with(folder, codec_steps=30) as run:
        train_codec(run, 30, ending=ending)
        with run.open_codec() as codec:
            assert codec.is_finished
    with open_with(folder, codec_steps=60) as run:
        assert train_codec(run, 60, end_step=60, ending="all updates are done") == 30
        fill(run, 10)
    with pytest.raises(RunChangedError, match=r"training\.codec_steps was 60, now 90"):
        open_once(folder, codec_steps=90)


MINE = ["checkpoints.json", "metrics.jsonl", "run.json", "step-00000010"]
OTHERS = ["run.lock", "thesis.tex"]


def kill_everywhere(directory):
    """What was found after each kill of a process that keeps a run aside, before every line it executes, once the folder was opened
    again, counted: the old run in place, or moved whole."""
    template, folder = Path(directory, "template"), Path(directory, "run")
    template.mkdir()
    (template / "thesis.tex").touch()
    train(template, 10)
    (template / "metrics.jsonl").touch()
    states = Counter()
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        kill = functools.partial(kill_before_line, states.total(), [run_folder.__file__])
        if not run_killed(lambda: run_folder.keep_run_aside(folder), kill):
            return {"kills": states.total(), "states": states}
        open_once(folder)
        is_old = list_names(folder) == sorted([*MINE, *OTHERS])
        if not is_old:
            assert list_names(folder) == sorted(["previous-run-1", "run.json", *OTHERS])
            assert list_names(folder / "previous-run-1") == MINE
        states["old" if is_old else "moved"] += 1


def test_a_reset_killed_anywhere_loses_nothing(tmp_path):
    code = "from tests.training.test_run_folder import kill_everywhere"
    result = run_code(f"{code}\nreport(kill_everywhere({str(tmp_path)!r}))")
    assert result["kills"] > 30
    assert result["states"].keys() == {"old", "moved"}, "both must occur, and nothing else"
