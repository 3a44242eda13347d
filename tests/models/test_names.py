"""The table of weights agrees with Coqui's files, and with what is built."""

import ml_dtypes
import numpy as np
import pytest

from myxtts.config import ModelConfig
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.sizes import read_sizes
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import (
    GPT_PREFIX,
    SPEAKER_PREFIX,
    CheckpointMismatchError,
    count_parameters,
    find_variable,
    list_dvae_weights,
    list_gpt_weights,
    list_xtts_weights,
    load_checkpoint_arrays,
    to_checkpoint,
)
from myxtts.models.xtts import XTTS
from tests.models.reference import (
    DECODER_SIZE,
    DVAE_SIZE,
    GPT_SIZE,
    SPEAKER_SIZE,
    WHOLE_DECODER_SIZE,
    WHOLE_GPT_SIZE,
    load_facts,
    load_state,
)
from tests.models.small import SIZE, build_small_gpt


@pytest.fixture(scope="module")
def published():
    return load_facts("published")


@pytest.fixture(scope="module")
def big():
    return read_sizes(ModelConfig(size="big"))


def test_big_has_the_keys_and_shapes_of_the_published_files(published, big):
    model, dvae = list_xtts_weights(big.gpt, big.decoder, big.speaker), list_dvae_weights(big.dvae)
    for weights, file, count in ((model, "model", 963), (dvae, "dvae", 56)):
        assert {weight.key: list(weight.shape) for weight in weights} == published[file]
        assert len(weights) == len(published[file]) == count


def test_weight_decay_falls_on_what_the_recipe_decays(published, big):
    weights = list_gpt_weights(big.gpt)
    assert {weight.key for weight in weights if weight.decays} == set(published["groups"]["weight_decay_0.01"])
    assert {weight.key for weight in weights if not weight.decays} == set(published["groups"]["no_weight_decay"])


@pytest.mark.parametrize(
    ("size", "gpt", "dvae", "decoder"),
    [
        ("tiny", 11_083_459, 3_623_634, 1_213_304),
        ("small", 46_304_111, 13_566_290, 4_589_040),
        ("base", 152_895_515, 52_719_186, 16_910_304),
        ("big", 441_018_563, 52_719_186, 17_827_808),
    ],
)
def test_parameters_are_counted_without_building(size, gpt, dvae, decoder):
    counts = count_parameters(ModelConfig(size=size))
    assert counts == {"gpt": gpt, "dvae": dvae, "decoder": decoder, "speaker_encoder": 8_054_147}


def build_whole():
    return XTTS(
        GPT(WHOLE_GPT_SIZE), decoder=WaveformDecoder(WHOLE_DECODER_SIZE), speaker_encoder=SpeakerEncoder(SPEAKER_SIZE)
    )


BUILDERS = {
    "whole": build_whole,
    "gpt": lambda: GPT(SIZE),
    "dvae": lambda: DVAE(DVAE_SIZE),
    "decoder": lambda: WaveformDecoder(DECODER_SIZE),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_the_table_names_every_built_variable_once_with_its_shape(name):
    part = BUILDERS[name]()
    listed = {weight.variable: weight for weight in part.list_weights()}
    assert len(listed) == len(part.list_weights())
    found = [find_variable(part, path) for path in listed]
    assert {id(variable) for variable in found} == {id(variable) for variable in part.variables}
    for variable, weight in zip(found, listed.values(), strict=True):
        assert tuple(variable.shape) == weight.variable_shape, weight.key
        assert variable.dtype == weight.dtype, weight.key


def test_only_what_training_moves_is_trainable():
    whole = build_whole()
    assert whole.speaker_encoder.trainable_variables == []
    assert len(whole.gpt.trainable_variables) == len(whole.gpt.variables)
    dvae = DVAE(DVAE_SIZE)
    assert len(dvae.trainable_variables) == len(dvae.variables) - 6


CASES = {
    "gpt_state": ("", lambda: GPT(GPT_SIZE)),
    "d_dvae": ("", lambda: DVAE(DVAE_SIZE)),
    "e_hifi": ("waveform_decoder.", lambda: WaveformDecoder(DECODER_SIZE)),
    "f_speaker_encoder": ("", lambda: SpeakerEncoder(SPEAKER_SIZE)),
    "l_end_to_end": ("", build_whole),
}


@pytest.mark.parametrize("case", CASES)
def test_an_exported_checkpoint_is_the_imported_one_bit_for_bit(case):
    prefix, build = CASES[case]
    state = load_state(case, prefix)
    part = build()
    assert load_checkpoint_arrays(part, state).is_complete
    exported = to_checkpoint(part)
    assert exported.keys() == state.keys()
    for key, array in state.items():
        assert exported[key].dtype == array.dtype, key
        assert exported[key].flags.c_contiguous, key
        np.testing.assert_array_equal(exported[key], array, err_msg=key)


@pytest.fixture
def small():
    return build_small_gpt()


def test_a_part_is_taken_out_of_a_larger_checkpoint(small):
    arrays = to_checkpoint(small, prefix=GPT_PREFIX)
    arrays["hifigan_decoder.waveform_decoder.conv_pre.bias"] = np.zeros(3)
    arrays["gpt.final_norm.weight"] = arrays["gpt.final_norm.weight"] + 1
    assert load_checkpoint_arrays(small, arrays, prefix=GPT_PREFIX).is_complete
    np.testing.assert_array_equal(small.final_norm.gamma.numpy(), arrays["gpt.final_norm.weight"])


def test_nothing_else_is_ignored(small):
    arrays = to_checkpoint(small) | {"gpt.h.2.ln_1.weight": np.zeros(16), "surprise": np.zeros(1)}
    assert load_checkpoint_arrays(small, arrays).unexpected == ["gpt.h.2.ln_1.weight", "surprise"]


def test_buffers_nobody_reads_may_be_missing():
    encoder = SpeakerEncoder(SPEAKER_SIZE)
    arrays = to_checkpoint(encoder, prefix=SPEAKER_PREFIX)
    fewer = {key: value for key, value in arrays.items() if "num_batches" not in key and "torch_spec" not in key}
    assert len(fewer) < len(arrays)
    assert load_checkpoint_arrays(encoder, fewer, prefix=SPEAKER_PREFIX).is_complete


def test_what_does_not_fit_is_reported_and_left_alone(small):
    before = to_checkpoint(small)
    arrays = {key: value + 1 for key, value in before.items()}
    arrays["text_head.bias"] = np.zeros(31, np.float32)
    del arrays["final_norm.bias"]
    report = load_checkpoint_arrays(small, arrays)
    assert report.missing == ["final_norm.bias"]
    assert report.mis_shaped == [("text_head.bias", (30,), (31,))]
    after = to_checkpoint(small)
    np.testing.assert_array_equal(after["text_head.bias"], before["text_head.bias"])
    np.testing.assert_array_equal(after["mel_head.bias"], before["mel_head.bias"] + 1)
    with pytest.raises(CheckpointMismatchError, match=r"text_head.bias must have shape \(30,\), but has \(31,\)"):
        report.require_complete()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_a_number_that_no_weight_is_ends_the_loading(small, value, dtype):
    arrays = to_checkpoint(small)
    with np.errstate(over="ignore"):
        arrays["final_norm.bias"] = np.full(SIZE.width, value).astype(dtype)
    with pytest.raises(
        CheckpointMismatchError, match=r"final_norm\.bias holds (nan|inf|1e\+38|9\.9\d+e\+37), which no weight is"
    ):
        load_checkpoint_arrays(small, arrays).require_complete()


def test_whole_numbers_are_no_weights(small):
    arrays = {**to_checkpoint(small), "final_norm.bias": np.zeros(SIZE.width, np.int64)}
    with pytest.raises(CheckpointMismatchError, match="must be floating-point numbers, but is int64"):
        load_checkpoint_arrays(small, arrays).require_complete()
