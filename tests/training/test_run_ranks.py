"""Which checkpoint is the best one, when a run ends early, and which codec a run may go on with."""

import json
import shutil

import pytest

from myxtts.checkpoints.model_directory import MANIFEST_NAME
from myxtts.monitoring.metrics_log import read_metrics
from myxtts.monitoring.metrics_rows import ValidationRow
from myxtts.training.starting_point import read_codec
from tests.training.runs import make_words, read_losses, train_all

EVERY_ROUND = ("--validation-interval", "1", "--checkpoint-interval", "99", "--keep-last", "9", "--mode", "single")
STANDS_STILL = {"training.learning_rate": 1e-12}
"""So small that no weight changes, and so no validation is better than the first."""


@pytest.fixture(scope="module")
def runs(share, codec_run):
    """A codec, a run that nothing makes better and the same killed just before its end, and a run with another codec."""

    def make(folder):
        folder.mkdir()
        corpus = ("--train-data", str(codec_run / "corpus"))
        codec = make_words(
            folder / "codec",
            *corpus,
            *EVERY_ROUND,
            "--checkpoint-interval",
            "1",
            "--stage",
            "codec",
            "--max-steps",
            "4",
        )
        early = (*corpus, *EVERY_ROUND, "--max-steps", "9", "--early-stopping", "2")
        shutil.copytree(codec_run / "codec", folder / "given")
        words = make_words(folder / "early", *early, "--codec", folder / "given", **STANDS_STILL)
        told = train_all(folder / "first", codec, words)
        assert [said.code for said in told] == [0, 0], told
        forget_end(folder / "early")
        shutil.copytree(folder / "early", folder / "moved")
        shutil.copytree(folder / "given", folder / "copy")
        shutil.copytree(folder / "early", folder / "other")
        other = [
            make_words(folder / "moved", *early, "--codec", folder / "copy", **STANDS_STILL),
            make_words(folder / "other", *early, "--codec", folder / "codec", **STANDS_STILL),
        ]
        again = train_all(folder / "again", words, *other)
        (folder / "again.json").write_text(json.dumps(again), encoding="utf-8")

    return share("ranks", make)


@pytest.fixture
def again(runs):
    return json.loads((runs / "again.json").read_text(encoding="utf-8"))


def forget_end(run):
    """Makes a run one that was killed after its last checkpoint, before it could say that it is finished."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert "no better validation loss in 2 rounds" in record["ending"]
    (run / "run.json").write_text(json.dumps({**record, "ending": None}), encoding="utf-8")


def read_ranks(run):
    """The metrics of each checkpoint."""
    return {
        path.name: json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))["facts"]["metrics"].keys()
        for path in sorted(run.glob("step-*"))
    }


@pytest.mark.soak
def test_a_codec_without_codes_is_never_the_best(runs):
    ranks = read_ranks(runs / "codec")
    assert ranks["step-00000001"] == set()
    assert all("val_loss" in ranks[f"step-0000000{step}"] for step in (2, 3, 4))
    rows = [row for row in read_metrics(runs / "codec" / "metrics.jsonl").rows if isinstance(row, ValidationRow)]
    assert ["commitment" in row.scalars for row in rows] == [False, True, True, True]
    assert [row.is_best for row in rows][:2] == [False, True], "the first that has codes is the best so far"
    assert read_codec(runs / "codec").folder.name != "step-00000001"


@pytest.mark.soak
def test_the_best_is_saved_though_no_checkpoint_is_due(runs):
    assert list(read_ranks(runs / "early")) == ["step-00000001", "step-00000003"]
    assert "val_loss" in read_ranks(runs / "early")["step-00000001"]


@pytest.mark.soak
def test_a_run_killed_at_its_early_end_does_not_train_on(runs, again):
    code, said = again[0]
    assert code == 0, said[-3000:]
    assert "no better validation loss in 2 rounds (3 updates)" in said
    assert [step for step, _ in read_losses(runs / "early")] == [1, 2, 3]


@pytest.mark.soak
def test_the_codec_of_a_run_may_lie_elsewhere(runs, again):
    code, said = again[1]
    assert code == 0, said[-3000:]


@pytest.mark.soak
def test_another_codec_is_refused(runs, again):
    code, said = again[2]
    assert code == 2, said[-3000:]
    assert "is not the one this run has learnt the codes of" in said
    assert "Traceback" not in said
