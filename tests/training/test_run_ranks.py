"""Which checkpoint is the best one, when a run ends early, and which codec a run may go on with."""

import json
import shutil

import pytest

from myxtts.checkpoints.model_directory import MANIFEST_NAME
from myxtts.monitoring.metrics import ValidationRow
from myxtts.training.starting_point import read_codec
from tests.support.tiny_run import TinyRun, run_tiny

pytestmark = pytest.mark.soak

EVERY_ROUND = ("--validation-interval", "1", "--keep-last", "9")
STANDS_STILL = {"training.learning_rate": 1e-12}
"""So small that no weight changes, and so no validation is better than the first."""


def read_ranks(run):
    """The metrics of each checkpoint."""
    return {
        path.name: json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))["facts"]["metrics"].keys()
        for path in sorted(run.folder.glob("step-*"))
    }


@pytest.fixture(scope="module")
def codec(share, codec_run):
    flags = ("--train-data", codec_run / "corpus", *EVERY_ROUND, "--checkpoint-interval", "1", "--stage", "codec")
    return TinyRun.at(share("ranked_codec", lambda folder: run_tiny(folder, *flags, "--max-steps", "4")))


def test_a_codec_without_codes_is_never_the_best(codec):
    ranks = read_ranks(codec)
    assert ranks["step-00000001"] == set()
    assert all("val_loss" in ranks[f"step-0000000{step}"] for step in (2, 3, 4))
    rows = codec.list_rows(ValidationRow)
    assert ["commitment" in row.scalars for row in rows] == [False, True, True, True]
    assert [row.is_best for row in rows][:2] == [False, True], "the first that has codes is the best so far"
    assert read_codec(codec.folder).folder.name != "step-00000001"


def test_a_run_that_ended_early_has_its_best_and_goes_on_with_its_own_codec_only(codec_run, codec, tmp_path):
    flags = (
        *("--train-data", codec_run / "corpus", *EVERY_ROUND, "--checkpoint-interval", "99"),
        *("--max-steps", "9", "--early-stopping", "2"),
    )
    given = shutil.copytree(codec_run / "codec", tmp_path / "given")
    early = run_tiny(tmp_path / "early", *flags, "--codec", given, **STANDS_STILL)
    assert list(read_ranks(early)) == ["step-00000001", "step-00000003"], "the best, though no checkpoint is due"
    assert "val_loss" in read_ranks(early)["step-00000001"]
    # As if it had been killed after its last checkpoint, before it could say that it is finished.
    record = early.record
    assert "no better validation loss in 2 rounds" in record["ending"]
    (early.folder / "run.json").write_text(json.dumps({**record, "ending": None}), encoding="utf-8")
    moved, other = (shutil.copytree(early.folder, tmp_path / name) for name in ("moved", "other"))

    again = run_tiny(early.folder, *flags, "--codec", given, **STANDS_STILL)
    assert "no better validation loss in 2 rounds (3 updates)" in again.text
    assert [step for step, _ in again.losses] == [1, 2, 3]
    run_tiny(moved, *flags, "--codec", shutil.copytree(given, tmp_path / "copy"), **STANDS_STILL)
    refused = run_tiny(other, *flags, "--codec", codec.folder, expect=2, **STANDS_STILL)
    assert "is not the one this run has learnt the codes of" in refused.text
    assert "Traceback" not in refused.text
