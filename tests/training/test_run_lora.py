"""Runs that train adapters to a model: what they keep, go on from, say and give away."""

import json
import shutil

import numpy as np
import pytest

from myxtts.checkpoints.coqui import import_coqui_files
from myxtts.checkpoints.model_directory import read_manifest, read_model_directory
from myxtts.checkpoints.store import find_model_directory, have_same_weights
from myxtts.checkpoints.tensors import open_safetensors, read_array
from myxtts.config import XTTSConfig
from myxtts.errors import ConfigError, ModelFileError
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.models.weights import OPTIONAL
from myxtts.training.starting_point import read_starting_point
from tests.support.tiny_run import TinyRun, run_command_tiny, run_tiny
from tests.training.test_run_starts import OF_THE_START, publish

FACTOR = 8 / 2
LORA = ("--lora-rank", "2", "--lora-alpha", "8", "--lora-matrices", "qkv,contract")
OFTEN = ("--checkpoint-interval", "2", "--keep-last", "9", "--ema-decay", "0.5", "--validation-interval", "2")
HALF = ("--lora-rank", "4", "--mixed-precision", "mixed_bfloat16", "--gradient-checkpointing", "--max-steps", "2")
PRODUCTS = {f"gpt.gpt.h.0.{name}" for name in ("attn.c_attn", "mlp.c_proj")}


@pytest.fixture(scope="module")
def runs(share, unbroken, codec_run):
    """In `whole` a model with all parts; from it, runs that train adapters in one go and in two, and one that trains all of it;
    from a run, adapters to a base of 16 bits."""

    def make(folder):
        folder.mkdir()
        publish(unbroken.folder / "step-00000008", folder)
        start = ("--train-data", codec_run / "corpus", "--grad-accum", "1", "--init-from")
        run_tiny(folder / "full", *start, folder / "whole", "--max-steps", "1", **OF_THE_START)
        run_tiny(folder / "voice", *start, folder / "whole", *LORA, *OFTEN, "--max-steps", "4", **OF_THE_START)
        shutil.copytree(folder / "whole", folder / "gone")
        broken = (*start, folder / "gone", *LORA, *OFTEN)
        run_tiny(folder / "broken", *broken, "--max-steps", "2", **OF_THE_START)
        shutil.rmtree(folder / "gone")
        run_tiny(folder / "broken", *broken, "--max-steps", "4", "--resume", **OF_THE_START)
        run_tiny(folder / "half", *start, unbroken.folder, *HALF, **OF_THE_START)

    return share("lora", make)


@pytest.fixture
def copied(runs, tmp_path):
    """A run's folder that may be spoilt."""
    return shutil.copytree(runs / "voice", tmp_path / "voice")


def read_arrays(tensors):
    return {name: read_array(tensor) for name, tensor in tensors.items()}


def test_a_run_that_goes_on_is_the_unbroken_one_though_its_start_is_gone(runs):
    voice, broken = (TinyRun.at(runs / name) for name in ("voice", "broken"))
    assert [step for step, _ in voice.losses] == [1, 2, 3, 4]
    assert broken.story == voice.story
    assert voice.validations[-1][1] < voice.validations[0][1]
    assert voice.losses[0] == TinyRun.at(runs / "full").losses[0], "before an update, the base's"


def test_a_checkpoint_holds_the_adapter_alone_and_names_its_base(runs):
    step = runs / "voice" / "step-00000004"
    own = open_safetensors(step / "model.safetensors")
    pairs = {f"{name}.{side}" for name in PRODUCTS for side in ("lora_down", "lora_up")}
    assert own.keys() == {*pairs, "mel_stats"}
    assert not (step / "dvae.safetensors").exists()
    state = open_safetensors(step / "training.safetensors")
    numbers = sum(own[name].size for name in pairs)
    # Two averages of gradients, the average of the pairs and the pairs themselves; the updates are counted.
    assert sum(tensor.size for tensor in state.values()) == 4 * numbers + 1
    base = read_manifest(step).facts.base
    assert (base.path, base.factor) == ("../start", FACTOR)
    assert base.sha256 == read_manifest(runs / "voice" / "start").files["model.safetensors"].sha256


def test_read_as_a_model_it_is_its_base_with_the_products_added(runs):
    whole, model = read_model_directory(runs / "whole"), read_model_directory(find_model_directory(runs / "voice"))
    pairs, merged = read_arrays(model.adapter), read_arrays(model.model)
    assert merged.keys() == whole.model.keys()
    for name, array in read_arrays(whole.model).items():
        key = name.removesuffix(".weight")
        if key in PRODUCTS:
            assert np.abs(merged[name] - array).max() > 1e-5
            array = array + FACTOR * pairs[f"{key}.lora_down"] @ pairs[f"{key}.lora_up"]
        np.testing.assert_allclose(merged[name], array, atol=1e-6 if key in PRODUCTS else 0, rtol=0, err_msg=name)
    assert read_arrays(model.dvae).keys() == whole.dvae.keys()


def test_what_is_exported_needs_no_base(runs, tmp_path):
    run_command_tiny("export", runs / "voice", "--coqui", "--out", tmp_path / "coqui", told=tmp_path / "told")
    import_coqui_files(tmp_path / "coqui" / "model.pth", tmp_path / "again")
    again = read_arrays(read_model_directory(tmp_path / "again").model)
    for name, array in read_arrays(read_model_directory(find_model_directory(runs / "voice")).model).items():
        if not OPTIONAL.search(name):
            np.testing.assert_array_equal(again[name], array, err_msg=name)
    assert not [name for name in again if "lora" in name]


def test_it_speaks_as_its_merged_weights_do(runs):
    synthesizer = load_synthesizer(runs / "half")
    merged = read_model_directory(find_model_directory(runs / "half")).model["gpt.gpt.h.0.attn.c_attn.weight"]
    np.testing.assert_array_equal(synthesizer.xtts.gpt.blocks[0].qkv.kernel, read_array(merged))
    voice = synthesizer.clone_samples([np.sin(np.arange(22050) * 0.05).astype(np.float32)])
    assert synthesizer.speak("yellow willow", voice, "en").samples.size > 0


def test_another_run_starts_from_it_as_from_a_whole_model(runs, tmp_path):
    start = read_starting_point(runs / "voice", tmp_path / "run", is_resumed=False, keeps=True)
    checkpoint = find_model_directory(runs / "voice")
    assert have_same_weights(start.folder, checkpoint), "so that a decoder trained for it is found"
    assert read_manifest(start.folder).facts.base is None
    merged = read_arrays(read_model_directory(checkpoint).model)
    for name, array in read_arrays(start.weights).items():
        np.testing.assert_array_equal(array, merged[name], err_msg=name)


def test_adapters_are_trained_beside_a_base_of_16_bits(runs):
    half = TinyRun.at(runs / "half")
    assert len(half.losses) == 2
    own = open_safetensors(runs / "half" / "step-00000002" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in own.values()} == {"float32"}
    assert sum(name.endswith("lora_down") for name in own) == 4, "all products by default"


def test_without_its_base_it_is_refused_and_stays_where_it_is(copied, codec_run, runs):
    shutil.rmtree(copied / "start")
    words = r"holds an adapter to the model in .*start, which cannot be read .*copy the folder of the run as a whole"
    with pytest.raises(ModelFileError, match=words):
        read_model_directory(copied / "step-00000004")
    start = ("--train-data", codec_run / "corpus", "--init-from", runs / "whole")
    flags = (*start, *LORA, *["--grad-accum", "1", "--resume", "--max-steps", "5", "--ema-decay", "0.5"])
    run = run_tiny(copied, *flags, expect=None, **OF_THE_START)
    assert run.code != 0
    assert "holds an adapter to the model in" in run.text
    assert run.checkpoints[-1] == 4


@pytest.mark.parametrize("other", ["another model", "another adapter", "itself"])
def test_beside_another_base_it_is_refused(copied, runs, unbroken, other):
    step = copied / "step-00000004"
    if other == "itself":
        manifest = json.loads((step / "manifest.json").read_text())
        manifest["facts"]["base"] |= {"path": ".", "sha256": manifest["files"]["model.safetensors"]["sha256"]}
        (step / "manifest.json").write_text(json.dumps(manifest))
    else:
        shutil.rmtree(copied / "start")
        adapter = runs / "half" / "step-00000002"
        shutil.copytree(adapter if other == "another adapter" else unbroken.folder / "step-00000008", copied / "start")
    with pytest.raises(ModelFileError, match=r"whose weights have the checksum [0-9a-f]{64}, but in .* is another one"):
        read_model_directory(step)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora_rank": 4}, r"training.init_from is not given: .*Name it with --init-from"),
        ({"lora_rank": 4, "stage": "decoder"}, "only a GPT has adapters"),
        ({"lora_matrices": "qkv,heads"}, "must be some of qkv,project,expand,contract, each once"),
        ({"lora_matrices": "qkv,qkv"}, "each once"),
        ({"lora_rank": -1}, "must be at least 0"),
    ],
)
def test_what_cannot_be_is_said(settings, told):
    with pytest.raises(ConfigError, match=told):
        XTTSConfig(training=settings)


def test_adapters_learn_faster_than_a_whole_model():
    for rank, rate in ((4, 3e-4), (0, 5e-6)):
        config = XTTSConfig(training={"init_from": "voice", "lora_rank": rank})
        assert config.training.learning_rate == rate
