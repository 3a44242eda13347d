"""What a run starts with, before anything is trained."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.store import TrainingCheckpoint, TrainingState
from myxtts.config import ModelConfig, XTTSConfig
from myxtts.errors import DamagedFileError, StartingPointError
from myxtts.models.weights import CheckpointMismatchError
from myxtts.pipeline.codes import load_codec
from myxtts.training import starting_point
from myxtts.training.model import TrainedModel
from myxtts.training.starting_point import (
    StartingPoint,
    fit_model_config,
    read_codec,
    read_starting_point,
    require_vocabulary,
)
from tests.inference.builders import write_small_model


@pytest.mark.parametrize("is_resumed", [False, True])
def test_another_file_is_imported_unless_the_run_has_a_checkpoint(tmp_path, monkeypatch, is_resumed):
    def import_file(path, target, **beside):
        write_small_model(target, notice=path.stem)
        return SimpleNamespace(tensors=1)

    monkeypatch.setattr(starting_point, "import_coqui_files", import_file)
    for name in ("first", "second"):
        path = tmp_path / f"{name}.pth"
        path.touch()
        start = read_starting_point(path, tmp_path / "run", is_resumed=is_resumed)
        assert start.directory.manifest.facts.notice == ("first" if is_resumed else name)


def test_a_codec_must_have_the_codes_that_the_model_speaks(tmp_path):
    model = ModelConfig(size="tiny")
    start = StartingPoint(SimpleNamespace(path=tmp_path, config=XTTSConfig(model={"size": "tiny"}), model={}))
    fitting = ModelConfig(size="tiny", dvae_width=96)
    assert fit_model_config(XTTSConfig(), start, fitting, 99).model.dvae_width == 96
    other = ModelConfig(size="tiny", audio_codes=model.audio_codes // 2)
    with pytest.raises(StartingPointError, match=rf"{other.audio_codes} codes.* speaks {model.audio_codes}"):
        fit_model_config(XTTSConfig(), start, other, 99)


def test_a_model_whose_configuration_lies_is_refused_before_it_is_built(tmp_path):
    folder = write_small_model(tmp_path / "model")
    model = read_model_directory(folder)
    lie = model.config.replace(model={"text_tokens": 1_000_000})
    write_model_directory(tmp_path / "lie", config=lie, model=model.model, dvae=model.dvae)
    with pytest.raises(CheckpointMismatchError, match=r"must have shape \(1000000, 32\), but has \(188, 32\)"):
        read_starting_point(tmp_path / "lie", tmp_path / "run", is_resumed=False)
    lie = model.config.replace(model={"dvae_width": 16384})
    write_model_directory(tmp_path / "lie", config=lie, model=model.model, dvae=model.dvae)
    for read in (read_codec, load_codec):
        with pytest.raises(CheckpointMismatchError, match="but has"):
            read(tmp_path / "lie")


@pytest.mark.parametrize("norm", [0.0, np.nan, -1.0])
def test_mel_statistics_must_be_a_scale(tmp_path, norm):
    model = read_model_directory(write_small_model(tmp_path / "model"))
    tensors = {**model.model, "mel_stats": np.full(80, norm, np.float32)}
    write_model_directory(tmp_path / "bad", config=model.config, model=tensors, dvae=model.dvae)
    with pytest.raises(StartingPointError, match="mel_stats, the scale of each mel channel, holds"):
        read_codec(tmp_path / "bad")


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({}, CheckpointMismatchError, "slot is missing"),
        ({"slot": np.zeros(3, np.float32)}, CheckpointMismatchError, r"must have shape \(2,\), but has \(3,\)"),
        ({"slot": np.zeros(2, np.int64)}, DamagedFileError, "holds slot as int64"),
        ({"slot": np.array([0, np.nan], np.float32)}, DamagedFileError, "not finite"),
    ],
    ids=["missing", "shape", "type", "nan"],
)
def test_a_run_does_not_go_on_with_a_state_that_is_not_its_own(tmp_path, tensors, error, message):
    part = SimpleNamespace(list_weights=list)
    step = SimpleNamespace(
        objective=SimpleNamespace(trained=part), list_state=lambda: [("slot", tf.Variable([1.0, 2.0]))]
    )
    saved = TrainingCheckpoint(SimpleNamespace(path=tmp_path, model={}, dvae={}), tensors, TrainingState(1, {}))
    with pytest.raises(error, match=message):
        TrainedModel(step, "", {}, None).restore(saved)


@pytest.mark.parametrize("change", ["grow", "leave out", "exchange"])
def test_a_vocabulary_keeps_the_rows_of_the_tokens_a_model_knows(tmp_path, change):
    start = read_starting_point(write_small_model(tmp_path / "model"), tmp_path / "run", is_resumed=False)
    document = json.loads(start.vocabulary.read_text(encoding="utf-8"))
    ids = document["model"]["vocab"]
    known, refusal = len(ids), rf"of {len(ids)} are missing .* such as"
    if change == "grow":
        ids["پپ"] = max(ids.values()) + 1
        refusal = rf"{known + 1} tokens, but the GPT in .* knows {known}, and is not trained here"
    elif change == "leave out":
        del ids["x"]
    else:
        ids["a"], ids["b"] = ids["b"], ids["a"]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    for is_trained in (True, False):
        if change == "grow" and is_trained:
            require_vocabulary(start, path, known + 1, is_trained=True)
            continue
        with pytest.raises(StartingPointError, match=refusal):
            require_vocabulary(start, path, len(ids), is_trained=is_trained)
