"""From Coqui's files to ours and back: the same bits, and clear words where something does not fit."""

import json
from dataclasses import replace

import numpy as np
import pytest

from myxtts.checkpoints.coqui import XTTS_WEIGHTS_NOTICE, find_notice, import_coqui_files
from myxtts.checkpoints.coqui_export import COQUI_DECODER_WIDTH, complete_model, explain_loading, export_coqui
from myxtts.checkpoints.model_directory import (
    copy_model_directory,
    list_content,
    read_model_directory,
    write_model_directory,
)
from myxtts.errors import ModelFileError
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import CheckpointMismatchError, list_xtts_weights
from tests.checkpoints.builders import write_torch_file
from tests.checkpoints.hostile_models import CONFIG, draw_tensors, draw_voice, write_whole_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory with every part."""
    folder = tmp_path_factory.mktemp("models") / "ours"
    voice = draw_voice()
    other = {name: 2 * array for name, array in voice.items()}
    write_whole_model(folder, speakers={"Claribel Dervla": voice, "a/b": other})
    return read_model_directory(folder)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "coqui"
    export_coqui(model, folder)
    return folder


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(tensor), err_msg=name)


def test_import_of_an_export_is_bit_identical(model, exported, tmp_path):
    report = import_coqui_files(
        exported / "model.pth",
        tmp_path / "again",
        dvae=exported / "dvae.pth",
        vocabulary=exported / "vocab.json",
        mel_statistics=exported / "mel_stats.pth",
        speakers=exported / "speakers_xtts.pth",
    )
    again = read_model_directory(tmp_path / "again")
    assert_equal(again.model, model.model)
    assert_equal(again.dvae, model.dvae)
    assert again.vocabulary == model.vocabulary
    assert report.voices == ("Claribel Dervla", "a/b") == tuple(again.speakers)
    assert_equal(again.speakers["a/b"], model.speakers["a/b"])
    # Two heads of sixteen channels, which no tensor shows.
    assert again.config.model.model_dump(exclude={"size"}) == CONFIG.model.model_dump(exclude={"size"})
    assert (report.missing_parts, report.differences.is_complete) == ((), True)
    assert "non-commercial" in again.manifest.facts.notice, "who knows whose it is"


def test_a_model_of_our_own_gets_no_licence_of_coqui_and_no_parts_it_lacks(tmp_path):
    sizes = read_sizes(CONFIG.model)
    tensors = draw_tensors(list_xtts_weights(sizes.gpt, None, None), 1)
    for name, notice in (("scratch", None), ("bound", "not for sale")):
        write_model_directory(tmp_path / name, config=CONFIG, model=tensors, notice=notice)
        copy_model_directory(read_model_directory(tmp_path / name), tmp_path / "copy" / name)
        for folder in (tmp_path / name, tmp_path / "copy" / name):
            report = import_coqui_files(folder / "model.safetensors", tmp_path / "again")
            assert (report.notice, report.parts) == (notice, ("gpt",))
            assert read_model_directory(tmp_path / "again").manifest.facts.notice == notice


def test_a_file_that_nobody_vouches_for_may_be_coquis(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "somebody else\'s"}')
    assert find_notice(tmp_path / "model.pth") == XTTS_WEIGHTS_NOTICE


def test_an_export_has_every_key_of_coquis_file_constants_included(model, exported):
    sizes = read_sizes(CONFIG.model)
    expected = {w.key: w.shape for w in list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker)}
    state = complete_model(model)
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == expected
    assert np.asarray(state["hifigan_decoder.speaker_encoder.bn1.num_batches_tracked"]).dtype == np.int64
    np.testing.assert_allclose(
        np.asarray(state["hifigan_decoder.speaker_encoder.torch_spec.0.filter"]).ravel(), [-0.97, 1.0], rtol=1e-6
    )
    assert json.loads((exported / "config.json").read_text())["model_args"]["gpt_layers"] == 2


@pytest.mark.parametrize("said", [{"model_args": {"gpt_layers": 2}, "languages": ["fr"]}, {"updates": 19314}])
def test_an_export_says_what_the_network_is_where_the_models_own_words_do_not(model, tmp_path, said):
    write_model_directory(tmp_path / "ours", **{**list_content(model), "source_config": said})
    export_coqui(read_model_directory(tmp_path / "ours"), tmp_path / "coqui")
    written = json.loads((tmp_path / "coqui/config.json").read_text())
    assert written == said if "model_args" in said else written["model_args"]["gpt_n_heads"] == 2


def test_an_export_that_coquis_loader_does_not_take_as_it_is_says_so(model):
    gpt = {name: tensor for name, tensor in model.model.items() if name.startswith("gpt.")}
    alone = {name: tensor for name, tensor in model.model.items() if "speaker_encoder" not in name}
    wide = model.config.model_copy(
        update={"model": model.config.model.model_copy(update={"decoder_width": COQUI_DECODER_WIDTH})}
    )
    assert "no HiFi-GAN decoder" in explain_loading(replace(model, model=gpt))
    assert "has 32 channels: Coqui's code has 512" in explain_loading(model)
    assert "no speaker encoder" in explain_loading(replace(model, model=alone, config=wide))
    assert explain_loading(replace(model, config=wide)) is None


def test_a_trainer_checkpoint_brings_its_dvae(model, tmp_path):
    state = {f"xtts.{name}": tensor for name, tensor in model.model.items()}
    state |= {f"dvae.{name}": tensor for name, tensor in model.dvae.items()}
    content = {"model": state, "step": 12, "config": {"audio": {"rate": 22050, "longest": float("inf")}}}
    write_torch_file(tmp_path / "best_model.pth", content)
    report = import_coqui_files(tmp_path / "best_model.pth", tmp_path / "out")
    imported = read_model_directory(tmp_path / "out")
    assert_equal(imported.dvae, model.dvae)
    assert imported.source_config == {"audio": {"rate": 22050}}, "JSON has no word for no limit"
    assert report.missing_parts == ("vocabulary: needed to fine-tune and to speak",)


def test_missing_and_unexpected_tensors_are_errors_unless_allowed(model, tmp_path):
    state = dict(model.model)
    del state["gpt.mel_head.bias"]
    state["gpt.surprise"] = np.zeros(3, np.float32)
    path = tmp_path / "model.pth"
    write_torch_file(path, {"model": state})
    with pytest.raises(CheckpointMismatchError, match=r"gpt.mel_head.bias is missing; gpt.surprise is unknown"):
        import_coqui_files(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = import_coqui_files(path, tmp_path / "out", allow_missing=True, allow_unexpected=True)
    assert report.differences.missing == ["gpt.mel_head.bias"]


def test_files_in_the_wrong_place_are_named(exported, tmp_path):
    with pytest.raises(ModelFileError, match=r"is a DVAE file. Give the model first, and this one by --dvae"):
        import_coqui_files(exported / "dvae.pth", tmp_path / "out")
    with pytest.raises(ModelFileError, match=r"Give dvae.pth by --dvae"):
        import_coqui_files(exported / "model.pth", tmp_path / "out", dvae=exported / "mel_stats.pth")
    with pytest.raises(ModelFileError, match=r"Give mel_stats.pth by --mel-stats"):
        import_coqui_files(exported / "model.pth", tmp_path / "out", mel_statistics=exported / "dvae.pth")
    with pytest.raises(ModelFileError, match=r"Give speakers_xtts.pth by --speakers"):
        import_coqui_files(exported / "model.pth", tmp_path / "out", speakers=exported / "dvae.pth")


def test_a_vocabulary_of_another_model_is_refused(model, exported, tmp_path):
    document = json.loads(model.vocabulary)
    document["model"]["vocab"]["zzz"] = 500
    (tmp_path / "vocab.json").write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="has 501 text tokens, but the model was made for 188"):
        import_coqui_files(exported / "model.pth", tmp_path / "out", vocabulary=tmp_path / "vocab.json")


def test_coquis_files_need_a_vocabulary(model, tmp_path):
    write_model_directory(tmp_path / "bare", config=CONFIG, model=model.model)
    with pytest.raises(ModelFileError, match="has no vocabulary"):
        export_coqui(read_model_directory(tmp_path / "bare"), tmp_path / "out")
