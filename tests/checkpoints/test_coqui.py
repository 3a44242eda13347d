"""Every file of Coqui's XTTS is recognised, with its tensors under one set of names and its numbers read off them."""

import json
from pathlib import Path

import numpy as np
import pytest

from myxtts.checkpoints.coqui import CoquiKind, infer_model_numbers, read_coqui_file, sort_content
from myxtts.config import ModelConfig
from myxtts.config.presets import MODEL_SIZES
from myxtts.errors import CheckpointError, ModelFileError
from tests.checkpoints.builders import ASSETS, describe_tensor, read_state
from tests.support.shared_files import find_parity

PATH = Path("given.pth")


def read_shapes(name):
    return json.loads(find_parity(f"{name}.json").read_text())


def describe_tensors(shapes):
    return {name: describe_tensor(tuple(shape)) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def full():
    return describe_tensors(read_shapes("xtts_v2_full_shapes"))


@pytest.fixture(scope="module")
def full_dvae():
    return describe_tensors(read_shapes("dvae_v2_full_shapes"))


def infer_numbers(file):
    return infer_model_numbers(join(file.arrays, file.dvae_arrays), file.config.get("model_args", {}))


def join(arrays, dvae_arrays):
    return {**arrays, **{f"dvae.{name}": tensor for name, tensor in dvae_arrays.items()}}


def is_dropped(name):
    return name.endswith(".num_batches_tracked") or ".torch_spec." in name or name.startswith("discrete_loss.")


def test_the_published_model_keeps_all_but_counters_and_constants(full):
    file = sort_content({"model": full, "config": {}}, PATH)
    assert file.kind is CoquiKind.MODEL
    assert file.arrays == {name: tensor for name, tensor in full.items() if not is_dropped(name)}
    assert len(file.arrays) == 963 - 37 - 3
    assert set(file.ignored) == {name for name in full if is_dropped(name)}
    assert file.dvae_arrays == {}
    # Aliases that inference adds.
    aliases = describe_tensors(read_shapes("xtts_v2_inference_alias_shapes"))
    aliased = sort_content({"model": full | aliases}, PATH)
    assert aliased.arrays == file.arrays
    assert aliases.keys() <= set(aliased.ignored)


def test_a_trainer_checkpoint_gives_the_model_and_the_dvae(full, full_dvae):
    state = describe_tensors(read_shapes("xtts_v2_trainer_checkpoint_shapes"))
    leftovers = {"optimizer": {}, "scaler": None, "step": 12, "date": "x", "model_loss": {"train_loss": 1.0}}
    file = sort_content({"model": state, "config": {"epochs": 3}, **leftovers}, PATH)
    assert file.kind is CoquiKind.TRAINER_CHECKPOINT
    assert file.arrays.keys() == sort_content({"model": full}, PATH).arrays.keys()
    assert file.dvae_arrays.keys() == {name for name in full_dvae if not is_dropped(name)}
    assert leftovers.keys() <= set(file.ignored)
    assert "config" not in file.ignored
    assert sum(name.startswith("torch_mel_spectrogram_") for name in file.ignored) == 4
    assert all(tensor.shape == full[name].shape for name, tensor in file.arrays.items())


def test_both_spellings_of_weight_norm_give_the_same_names(full):
    old = dict(full)
    for number, letter in enumerate("gv"):
        ours, theirs = f"parametrizations.weight.original{number}", f"weight_{letter}"
        old = {name.replace(ours, theirs): tensor for name, tensor in old.items()}
    assert sum(name.endswith(".weight_g") for name in old) == 76
    assert sort_content({"model": old}, PATH).arrays == sort_content({"model": full}, PATH).arrays
    with pytest.raises(ModelFileError, match="twice, under two names"):
        sort_content({"model": full | old}, PATH)


def test_the_tiny_files_are_recognised():
    model = read_coqui_file(find_parity("tiny_xtts_model.pth"))
    assert (model.kind, len(model.arrays)) == (CoquiKind.MODEL, 461)
    np.testing.assert_array_equal(model.arrays["mel_stats"].read(), read_state("l_end_to_end")["mel_stats"])
    assert infer_numbers(model) == {
        "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 4, "decoder_width": 64, "audio_codes": 64, "text_tokens": 188,
        "max_text_tokens": 120, "max_audio_tokens": 60, "max_prompt_tokens": 70,
    }  # fmt: skip
    dvae = read_coqui_file(find_parity("tiny_dvae.pth"))
    assert (dvae.kind, infer_numbers(dvae)) == (CoquiKind.DVAE, {"dvae_width": 32, "audio_codes": 64})
    statistics = read_coqui_file(find_parity("tiny_mel_stats.pth"))
    assert (statistics.kind, statistics.arrays["mel_stats"].shape) == (CoquiKind.MEL_STATISTICS, (80,))


def test_a_configuration_saved_as_objects_is_used():
    file = read_coqui_file(ASSETS / "coqui_classes.pth")
    assert file.config["languages"] == ["en", "es"]
    assert infer_numbers(file)["gpt_heads"] == 2
    assert file.arrays["gpt.text_embedding.weight"].read()[4, 7] == 39


def test_a_configuration_saved_as_json_is_used(full):
    file = sort_content({"model": full, "config": '{"model_args": {"gpt_n_heads": 8}}'}, PATH)
    assert infer_numbers(file)["gpt_heads"] == 8
    with pytest.raises(ModelFileError, match="its configuration must be JSON, but is not"):
        sort_content({"model": full, "config": "{"}, PATH)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (describe_tensor((2, 3)), r"single tensor of shape \(2, 3\)"),
        ("text", "holds a str where named tensors should be"),
        ({}, "holds a dict where named tensors should be"),
        ({"model": [1]}, "its entry `model` is a list"),
        ({"weight": 1, "bias": 2}, r"is not of XTTS: its first entries are \['weight', 'bias'\]"),
        ({"model": {}}, "is not of XTTS"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(ModelFileError, match=message):
        sort_content(content, PATH)


def test_the_published_shapes_give_the_numbers_of_big(full, full_dvae):
    numbers = infer_model_numbers(join(full, full_dvae), {})
    arguments = read_shapes("xtts_v2_full_meta")["model_args"]
    assert {key: numbers[key] for key in MODEL_SIZES["big"]} == MODEL_SIZES["big"]
    assert numbers["text_tokens"] == arguments["gpt_number_text_tokens"]
    assert numbers["audio_codes"] == arguments["gpt_num_audio_tokens"] - 2
    assert numbers["max_text_tokens"] == arguments["gpt_max_text_tokens"]
    assert numbers["max_audio_tokens"] == arguments["gpt_max_audio_tokens"]
    numbers = infer_model_numbers(join(full, full_dvae), arguments)
    assert ModelConfig(size="big", **numbers) == ModelConfig(size="big")


def change(arrays, name, shape):
    return arrays | {name: describe_tensor(shape)}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gpt.mel_head.weight", (1000, 1024), "contradict each other about audio_codes: .*says 1024, .*says 998"),
        ("gpt.text_head.weight", (9, 1024), "contradict each other about text_tokens"),
        ("hifigan_decoder.waveform_decoder.conv_pre.weight", (512, 99, 7), "contradict each other about gpt_width"),
        ("gpt.mel_pos_embedding.emb.weight", (3, 1024), "which no XTTS has"),
        ("gpt.text_embedding.weight", (6681,), "which no XTTS has"),
        ("gpt.gpt.h.31.ln_1.weight", (1024,), r"go up to 31, but block 30 is missing"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(full, name, shape, message):
    with pytest.raises(CheckpointError, match=message):
        infer_model_numbers(change(full, name, shape), {})


def test_heads_must_divide_the_width(full):
    with pytest.raises(CheckpointError, match=r"100 channels wide.*config\.json"):
        infer_model_numbers({"gpt.text_embedding.weight": describe_tensor((5, 100))}, {})
