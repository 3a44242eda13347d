"""Wrong paths are said at once: before TensorFlow, a scan, a measurement, or workers, which all say something when they begin."""

import pytest

from myxtts.cli.output import check_models
from myxtts.config import XTTSConfig


@pytest.fixture
def refuse_here(tmp_path, monkeypatch, refuse):
    """What is said of words in a folder with a file and a folder that is no model; nothing is left there."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").touch()
        (tmp_path / "empty").mkdir()
        said = refuse(*words)
        assert "..." not in said, "nothing was begun"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
        return said

    return run


@pytest.mark.parametrize("command", ["train", "profile", "configure"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--train-data", "nothere"], "nothere: there is no such file or folder"),
        (["--val-data", "nothere"], "nothere: there is no such file or folder"),
        (["--codec", "nothere"], "nothere: does not exist. Give a model directory"),
        (["--codec", "file"], "file: is no folder"),
        (["--codec", "empty"], "empty: is no model directory"),
        (["--init-from", "nothere"], "nothere: does not exist"),
    ],
)
def test_a_model_or_corpus_that_is_not_there_is_refused_at_once(refuse_here, command, flags, said):
    words = [command, "--rehearsal", *flags]
    assert said in refuse_here(*words)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--checkpoint-dir", "file"], "file: must be a folder, but is a file"),
        (["--checkpoint-dir", "/proc/run"], "/proc takes no new folder"),
        (["--checkpoint-dir", "nothere", "--resume"], "there is no run to resume"),
        (["--checkpoint-dir", "nothere", "--stage", "decoder"], "there is no run of one in nothere"),
    ],
)
def test_a_folder_that_no_run_can_have_is_refused_at_once(refuse_here, flags, said):
    assert said in refuse_here("train", "--rehearsal", *flags)


def test_a_decoders_run_that_goes_on_needs_its_first_model_no_longer(tmp_path):
    (tmp_path / "run" / "start").mkdir(parents=True)
    training = {"stage": "decoder", "init_from": str(tmp_path / "gone"), "checkpoint_dir": str(tmp_path / "run")}
    check_models(XTTSConfig(training=training))


def test_workers_without_a_codec_are_not_started(refuse):
    said = refuse("train", "--cluster", "local", "--trainers", "2", "--rehearsal")
    assert "needs a codec that is trained already" in said
    assert "\n  myxtts train --stage codec --checkpoint-dir runs/codec\n" in said


@pytest.mark.parametrize("command", [("train", "--rehearsal"), ("data-prepare", "--codec", "runs/codec")])
def test_a_cluster_on_which_nobody_is_to_work_is_refused(refuse, command):
    assert "none is asked for. Give --preparers N, --trainers M or both" in refuse(*command, "--cluster", "local")
