"""A training checkpoint gives back every value of a run, and is a model directory to everybody else."""

import json
import math

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.store import TrainingState, read_training_checkpoint
from myxtts.errors import DamagedFileError, ModelFileError
from tests.checkpoints.training_states import CONFIG, make_content, make_state, open_store


@pytest.fixture
def written(tmp_path):
    return open_store(tmp_path).save(**make_content(7), state=make_state(7, val_loss=0.1 + 0.2)).path


def test_a_checkpoint_is_a_model_directory(written):
    directory = read_model_directory(written)
    np.testing.assert_array_equal(directory.model["gpt.w"].read(), np.full(100, 7, np.float32))
    assert directory.config == CONFIG
    assert (directory.manifest.facts.step, directory.manifest.facts.metrics) == (7, {"val_loss": 0.1 + 0.2})
    assert {"training.json", "training.safetensors"} <= directory.manifest.files.keys()


def test_metrics_may_be_numbers_of_numpy_and_not_a_number(tmp_path):
    state = TrainingState(step=1, metrics={"train_loss": np.float32(0.5), "val_loss": math.nan})
    metrics = read_training_checkpoint(open_store(tmp_path).save(**make_content(1), state=state).path).state.metrics
    assert metrics["train_loss"] == 0.5
    assert math.isnan(metrics["val_loss"])


def test_what_would_not_come_back_as_it_was_is_not_written(tmp_path):
    state = TrainingState(step=1, metrics={}, extra={"counter": np.int64(3)})
    with pytest.raises(TypeError, match="int64"):
        open_store(tmp_path).save(**make_content(1), state=state)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_the_state_of_a_run_says_how_to_use_it(tmp_path):
    write_model_directory(tmp_path / "model", **make_content(1)["model"])
    with pytest.raises(ModelFileError, match=r"without training\.json.*--init-from"):
        read_training_checkpoint(tmp_path / "model")


def test_a_state_of_another_version_is_no_damage(written):
    path = written / "training.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}).ljust(path.stat().st_size))
    with pytest.raises(DamagedFileError, match=r"training\.json: (is damaged|must have)"):
        read_training_checkpoint(written)
    manifest = json.loads((written / "manifest.json").read_text())
    manifest["files"]["training.json"]["bytes"] = path.stat().st_size
    (written / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelFileError, match="has version 9, but this MyXTTS reads version 1") as caught:
        read_training_checkpoint(written, verify_checksums=False)
    assert not isinstance(caught.value, DamagedFileError)
