"""Runs that are killed or asked to stop go on as if nothing had happened."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from tests.support.tiny_run import (
    TRAIN_MAIN,
    LiveRun,
    TinyRun,
    at_step,
    in_saving,
    leaves_nothing,
    run_tiny,
    start_tiny,
)


@pytest.fixture(scope="module")
def interrupted(share, flags):
    """A run that was killed while it saved, asked to stop (`stopped`), and finished by the command it had printed."""

    def make(folder):
        with leaves_nothing(folder):
            live = start_tiny(folder, *flags, mode="isolated")
            live.strike(in_saving(folder), SIGKILL)
            live.finish(-SIGKILL)
        otherwise_read = {"data.num_workers": 1, "data.pipeline_buffer_size": 2}
        moment, told = at_step(folder, 1), folder.with_name("stopped")
        live = start_tiny(folder, *flags, "--resume", mode="dual", told=told, **otherwise_read)
        live.strike(moment, SIGTERM)
        stopped = live.finish(0)
        assert stopped.losses[-1][0] in stopped.checkpoints, "saved at once, not at the next interval"
        assert f"stopped by SIGTERM ({stopped.losses[-1][0]} updates)" in stopped.text
        assert "--resume" in stopped.resume_words
        LiveRun(folder, [*TRAIN_MAIN, *stopped.resume_words]).finish(0)

    return TinyRun.at(share("interrupted", make))


def test_a_run_killed_anywhere_and_resumed_in_other_modes_is_the_unbroken_run(interrupted, unbroken):
    assert interrupted.story == unbroken.story
    assert "goes on at step" in interrupted.text


@pytest.mark.soak
def test_ctrl_c_and_a_kill_while_the_codec_is_trained_change_nothing(codec_run, tmp_path):
    flags = (
        *("--train-data", str(codec_run / "corpus"), "--codec-steps", "6", "--max-steps", "3"),
        *("--checkpoint-interval", "2", "--validation-interval", "3"),
    )
    whole, broken, codec = run_tiny(tmp_path / "whole", *flags), tmp_path / "broken", tmp_path / "broken" / "codec"
    moment = at_step(codec, 1)
    live = start_tiny(broken, *flags)
    live.strike(moment, SIGINT)
    run = live.finish(130)
    assert TinyRun.at(codec).checkpoints
    assert "Resume  " in run.text
    live = start_tiny(broken, *flags)
    live.strike(in_saving(codec), SIGKILL)
    live.finish(-SIGKILL)
    run = run_tiny(broken, *flags, "--resume")
    assert TinyRun.at(codec).losses == TinyRun.at(whole.folder / "codec").losses
    assert TinyRun.at(codec).validations == TinyRun.at(whole.folder / "codec").validations
    assert run.story == whole.story
