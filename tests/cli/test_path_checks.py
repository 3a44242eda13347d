"""Wrong paths are said at once: before TensorFlow, a scan, a measurement, or workers."""

import pytest

from myxtts.cli import launch
from myxtts.cli.main import main
from myxtts.cli.output import check_models
from myxtts.config import XTTSConfig


@pytest.fixture
def too_late(monkeypatch):
    """Fails what comes after the checks."""

    def fail(*_, **__):
        raise AssertionError("too late")

    for name in (
        "myxtts.training.mode.plan_run",
        "myxtts.tuning.profile.plan_profile",
        "myxtts.tuning.configure.tune",
        "myxtts.cluster.launch.enter_private_network",
        "myxtts.cluster.launch.ProcessGroup.run",
    ):
        monkeypatch.setattr(name, fail)


@pytest.mark.parametrize(
    "command", [["train"], ["profile"], ["configure"], ["launch", "--workers", "2", "--", "train"]]
)
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
@pytest.mark.usefixtures("too_late")
def test_a_model_or_corpus_that_is_not_there_is_refused_at_once(tmp_path, monkeypatch, capsys, command, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    codec = [] if "--codec" in flags or "launch" not in command else ["--codec", "empty"]
    if codec:
        (tmp_path / "empty" / "manifest.json").touch()
    assert main([*command, "--rehearsal", *codec, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--checkpoint-dir", "file"], "file: must be a folder, but is a file"),
        (["--checkpoint-dir", "/proc/run"], "/proc takes no new folder"),
        (["--checkpoint-dir", "nothere", "--resume"], "there is no run to resume"),
        (["--checkpoint-dir", "nothere", "--stage", "decoder"], "there is no run of one in nothere"),
    ],
)
@pytest.mark.usefixtures("too_late")
def test_a_folder_that_no_run_can_have_is_refused_at_once(tmp_path, monkeypatch, capsys, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["train", "--rehearsal", *flags]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_decoders_run_that_goes_on_needs_its_first_model_no_longer(tmp_path):
    (tmp_path / "run" / "start").mkdir(parents=True)
    training = {"stage": "decoder", "init_from": str(tmp_path / "gone"), "checkpoint_dir": str(tmp_path / "run")}
    check_models(XTTSConfig(training=training))


@pytest.mark.usefixtures("too_late")
def test_workers_without_a_codec_are_not_started(capsys):
    assert main(["launch", "--workers", "2", "--", "train", "--rehearsal"]) == 2
    said = capsys.readouterr().err
    assert "need a codec that is trained already" in said
    assert "\n  myxtts train --stage codec --checkpoint-dir runs/codec\n" in said
    assert "To go on" not in said


@pytest.mark.parametrize(("code", "goes_on"), [(1, True), (2, False)])
def test_a_command_that_was_refused_is_not_told_to_be_given_again(tmp_path, monkeypatch, capsys, code, goes_on):
    class Group:
        failed = (1,)

        def __init__(self, *_, **__):
            pass

        def run(self):
            return [-15, code]

    monkeypatch.setattr("myxtts.cluster.launch.ProcessGroup", Group)
    (tmp_path / "manifest.json").touch()
    words = ["--workers", "2", "--open-ports", "--", "train", "--rehearsal", "--codec", str(tmp_path)]
    assert launch.run(words, "myxtts launch") == code
    assert ("To go on: myxtts launch" in capsys.readouterr().err) == goes_on
