"""Generation with cached keys and values."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models import decoding as decoding_module
from myxtts.models.decoding import (
    Greedy,
    Sampling,
    continue_decoding,
    generate,
    read_attention,
    specify_decoding,
    start_decoding,
)
from myxtts.models.gpt import GPT, SequenceTooLongError
from myxtts.models.weights import load_checkpoint_arrays
from tests.models.reference import GPT_SIZE, differ, load_case, load_state

STOP = GPT_SIZE.stop_audio_token


@pytest.fixture(scope="module")
def arrays():
    return load_case("h_generate")


@pytest.fixture(scope="module")
def say_greedily(gpt):
    @tf.function(autograph=False)
    def say(prompt, text, penalty):
        return generate(gpt, prompt, text, rule=Greedy(penalty), max_codes=GPT_SIZE.max_new_codes)

    return lambda prompt, text, penalty=1.0: say(tf.constant(prompt), tf.constant(text, tf.int32), tf.constant(penalty))


@pytest.mark.parametrize("case", ["stops", "limit"])
def test_latents_of_the_cache_are_those_of_a_second_pass(gpt, say_greedily, arrays, case):
    prompt, text = arrays["in/cond_latents"], arrays[f"in/text_{case}"]
    said = say_greedily(prompt, text)
    assert differ(said.latents_BMC[:, : said.count], arrays[f"out/latents_{case}"]) < 1e-4
    codes = tf.constant(arrays[f"out/codes_{case}"])
    second = gpt.compute_latents(tf.constant(prompt), tf.constant(text), codes)
    assert differ(said.latents_BMC[:, : said.count], second.numpy()) < 1e-4


def test_a_generation_cut_into_pieces_is_the_same(gpt, say_greedily, arrays):
    prompt, text = tf.constant(arrays["in/cond_latents"]), tf.constant(arrays["in/text_stops"], tf.int32)
    decoding = start_decoding(gpt, prompt, text, rule=Greedy(), max_codes=GPT_SIZE.max_new_codes)
    piece = tf.function(
        lambda decoding: continue_decoding(gpt, decoding, rule=Greedy(), codes=7),
        input_signature=[specify_decoding(decoding)],
        autograph=False,
    )
    counts = [int(decoding.count)]
    while not decoding.stopped_B[0]:
        earlier = decoding.codes_BM.numpy()
        kept = decoding
        decoding = piece(decoding)
        counts.append(int(decoding.count))
        np.testing.assert_array_equal(kept.codes_BM, earlier)
    assert counts == [1, 8, 15, 22, 29, 31]
    whole = say_greedily(arrays["in/cond_latents"], arrays["in/text_stops"])
    np.testing.assert_array_equal(decoding.codes_BM, whole.codes_BM)
    assert differ(decoding.latents_BMC[:, :31], whole.latents_BMC[:, :31].numpy()) < 1e-5
    assert piece.experimental_get_tracing_count() == 1


def test_the_cache_grows_as_often_as_needed(gpt, arrays, monkeypatch):
    monkeypatch.setattr(decoding_module, "ROOM", 5)
    prompt, text = tf.constant(arrays["in/cond_latents"]), tf.constant(arrays["in/text_stops"])
    said = tf.function(generate, autograph=False)(gpt, prompt, text, rule=Greedy(), max_codes=40)
    np.testing.assert_array_equal(said.codes_BM[:, : said.count], arrays["out/codes_stops"])
    prefix = 32 + text.shape[1] + 3
    assert said.keys[0].shape[2] == prefix + 30
    assert int(said.place) == prefix + int(said.count) - 1


@pytest.fixture(scope="module")
def say_by_chance(gpt, arrays):
    compiled = tf.function(
        lambda prompt, text, seeds: generate(gpt, prompt, text, rule=Sampling(), max_codes=24, seeds_B2=seeds),
        autograph=False,
    )

    def say(seeds):
        rows = len(seeds)
        prompt = np.repeat(arrays["in/cond_latents"], rows, 0)
        text = np.repeat(arrays["in/text_limit"], rows, 0)
        return compiled(tf.constant(prompt), tf.constant(text, tf.int32), tf.constant(seeds)).codes_BM.numpy()

    return say


def test_a_rows_codes_follow_its_own_seed(say_by_chance):
    codes = say_by_chance([[1, 0], [1, 1], [1, 0]])
    np.testing.assert_array_equal(codes[0], codes[2])
    assert np.any(codes[0] != codes[1])
    np.testing.assert_array_equal(codes, say_by_chance([[1, 0], [1, 1], [1, 0]]))
    np.testing.assert_array_equal(codes[:1], say_by_chance([[1, 0]]))


def test_more_codes_than_there_are_positions_are_refused(gpt, arrays):
    with pytest.raises(SequenceTooLongError, match="77 codes"):
        generate(
            gpt, *map(tf.constant, (arrays["in/cond_latents"], arrays["in/text_stops"])), rule=Greedy(), max_codes=78
        )


def test_sixteen_bit_weights_say_nearly_the_same(arrays):
    half = GPT(GPT_SIZE, dtype="float16")
    load_checkpoint_arrays(half, load_state("gpt_state")).require_complete()
    kept = {
        variable.dtype for variable in half.variables if "gamma" not in variable.name and "beta" not in variable.name
    }
    assert kept == {"float16"}
    assert half.final_norm.gamma.dtype == "float32"
    prompt, text = tf.constant(arrays["in/cond_latents"]), tf.constant(arrays["in/text_stops"])
    said = tf.function(generate, autograph=False)(half, prompt, text, rule=Greedy(), max_codes=12)
    np.testing.assert_array_equal(said.codes_BM, arrays["out/codes_stops"][:, :12])
    assert 0 < differ(said.latents_BMC, arrays["out/latents_stops"][:, :12]) < 0.03


def test_attention_read_at_once_is_that_of_one_code_at_a_time(gpt, arrays, monkeypatch):
    seen, attend_cached = [], decoding_module.attend_cached

    def watch(q, k, v, bias):
        scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(q.shape[-1]) + bias[:, None, None]
        seen.append(tf.nn.softmax(scores)[0, :, 0].numpy())
        return attend_cached(q, k, v, bias)

    monkeypatch.setattr(decoding_module, "attend_cached", watch)
    prompt, text = tf.constant(arrays["in/cond_latents"][:1]), tf.constant(arrays["in/text_stops"][:1], tf.int32)
    said = start_decoding(gpt, prompt, text, rule=Greedy(), max_codes=12)
    while said.count < 12:
        hidden, said = decoding_module._read_last_code(gpt, decoding_module._make_room(said))
        said = decoding_module._say(gpt, said, hidden, Greedy())
    attention = read_attention(gpt, prompt, text, said.codes_BM).numpy()
    blocks, heads, first, tokens = len(gpt.blocks), GPT_SIZE.heads, prompt.shape[1], text.shape[1] + 2
    assert attention.shape == (blocks * heads, 12, tokens)
    for code in range(1, 12):
        stepwise = np.concatenate(
            [each[:, first : first + tokens] for each in seen[(code - 1) * blocks : code * blocks]]
        )
        np.testing.assert_allclose(attention[:, code], stepwise, atol=1e-5)
