"""Runs that are killed or asked to stop go on as if nothing had happened."""

import sys
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from tests.training.runs import (
    ROOT,
    find_resume_command,
    finish,
    read_losses,
    read_story,
    read_validations,
    start,
    start_command,
    train,
)
from tests.training.strikes import at_step, count_steps, in_saving, leaves_nothing, strike


@pytest.fixture(scope="module")
def interrupted(share, flags):
    """A run that was killed while it saved, asked to stop, and finished by the command it had printed."""

    def make(folder):
        with leaves_nothing(folder):
            run = start(folder, *flags, "--mode", "isolated")
            strike(run, in_saving(folder), SIGKILL)
            assert finish(run, folder).code == -SIGKILL
        moment = at_step(folder, 1)
        otherwise_read = {"data.num_workers": 1, "data.pipeline_buffer_size": 2}
        run = start(folder, *flags, "--mode", "dual", "--resume", **otherwise_read)
        strike(run, moment, SIGTERM)
        said = finish(run, folder)
        assert said.code == 0, said.text[-6000:]
        step = count_steps(folder)
        folder.with_suffix(".stopped").write_text(f"{step}\n{said.text}", encoding="utf-8")
        assert (folder / f"step-{step:08d}").is_dir(), "saved at once, not at the next interval"
        command = [sys.executable, str(ROOT / "train_main.py"), *find_resume_command(said.text)]
        said = finish(start_command(folder, command), folder)
        assert said.code == 0, said.text[-6000:]

    return share("interrupted", make)


def test_a_run_killed_anywhere_and_resumed_in_other_modes_is_the_unbroken_run(interrupted, unbroken):
    assert read_story(interrupted) == read_story(unbroken)


def test_sigterm_saves_and_says_how_to_go_on(interrupted):
    step, _, said = interrupted.with_suffix(".stopped").read_text(encoding="utf-8").partition("\n")
    assert f"stopped by SIGTERM ({step} updates)" in said
    assert "--resume" in find_resume_command(said)


def test_a_resumed_run_says_from_where(interrupted):
    said = interrupted.with_suffix(".said").read_text(encoding="utf-8")
    assert "goes on at step" in said


@pytest.fixture(scope="module")
def scratch_flags(codec_run):
    return (
        *("--train-data", str(codec_run / "corpus"), "--mode", "single", "--codec-steps", "6", "--max-steps", "3"),
        *("--checkpoint-interval", "2", "--validation-interval", "3"),
    )


@pytest.mark.soak
def test_ctrl_c_and_a_kill_while_the_codec_is_trained_change_nothing(scratch_flags, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, *scratch_flags)
    moment = at_step(broken / "codec", 1)
    run = start(broken, *scratch_flags)
    strike(run, moment, SIGINT)
    said = finish(run, broken)
    assert said.code == 130, said.text[-6000:]
    assert len(list((broken / "codec").glob("step-*"))) >= 1
    assert "Resume  " in said.text
    run = start(broken, *scratch_flags)
    strike(run, in_saving(broken / "codec"), SIGKILL)
    assert finish(run, broken).code == -SIGKILL
    train(broken, *scratch_flags, "--resume")
    assert read_losses(broken / "codec") == read_losses(whole / "codec")
    assert read_validations(broken / "codec") == read_validations(whole / "codec")
    assert read_story(broken) == read_story(whole)
