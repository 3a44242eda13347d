"""Attention that works piece by piece and computes its scores twice is the plain formula, gradients included."""

import math

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.attention import (
    attend,
    count_draws,
    cut_masks,
    draw_kept,
    find_scale,
    make_causal_bias,
    make_dropout_key,
)
from myxtts.models.layers import LayerNorm, gelu_tanh

ROWS, PLACES, HEADS, WIDTH = 3, 7, 2, 4
DROPOUT = 0.3


def make_inputs():
    draw = np.random.default_rng(4)
    return [tf.constant(draw.normal(size=(ROWS, HEADS, PLACES, WIDTH)).astype(np.float32)) for _ in range(3)]


def make_bias():
    return make_causal_bias(tf.sequence_mask([PLACES, 5, 6], PLACES))


def attend_plainly(q, k, v, bias, kept, scale):
    """The formula as a textbook has it."""
    weights = tf.nn.softmax(tf.einsum("bhsd,bhtd->bhst", q, k) / math.sqrt(WIDTH) + bias)
    if kept is not None:
        weights *= tf.cast(kept, tf.float32) * scale
    return tf.reshape(tf.einsum("bhst,bhtd->sbhd", weights, v), [PLACES * ROWS, HEADS * WIDTH])


def differentiate(run, inputs):
    weights = tf.random.stateless_normal(run(*inputs).shape, [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = run(*inputs)
        total = tf.reduce_sum(y * weights)
    return [y, *tape.gradient(total, inputs)]


@pytest.mark.parametrize("scores", [0, 1 << 20, 1], ids=["kept", "computed twice", "row by row"])
@pytest.mark.parametrize("drops", [False, True], ids=["all", "dropped"])
def test_attention_of_any_pieces_is_the_plain_formula(scores, drops):
    bias, scale = make_bias(), find_scale(DROPOUT) if drops else 1.0
    shape = [ROWS, HEADS, PLACES, PLACES]
    kept = cut_masks(draw_kept(make_dropout_key(5, 6), DROPOUT, 0, count_draws(shape)), shape)[0] if drops else None
    ours = differentiate(lambda q, k, v: attend(q, k, v, bias, scores=scores, kept=kept, scale=scale), make_inputs())
    plain = differentiate(lambda q, k, v: attend_plainly(q, k, v, bias, kept, scale), make_inputs())
    for own, expected in zip(ours, plain, strict=True):
        np.testing.assert_allclose(own, expected, atol=2e-6, rtol=1e-5)


def test_masks_are_the_same_drawn_at_once_or_one_by_one_and_drop_their_share():
    shape, key = [31, 33], make_dropout_key(5, 6)
    room = count_draws(shape)
    together = cut_masks(draw_kept(key, 0.1, 0, 4 * room), shape)
    for number in range(4):
        np.testing.assert_array_equal(together[number], cut_masks(draw_kept(key, 0.1, number * room, room), shape)[0])
    other = cut_masks(draw_kept(make_dropout_key(5, 7), 0.1, 0, room), shape)
    assert not any(np.array_equal(together[0], each) for each in (other[0], *together[1:]))
    assert np.mean(draw_kept(key, 0.1, 0, 1_000_000)) == pytest.approx(0.9, abs=1e-3)


def test_gradients_written_by_hand_are_those_of_the_formulas():
    x = tf.random.stateless_normal([5, 8], [1, 2]) * 3 + 2

    def normalise_plainly(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-5)

    for ours, plain in (
        (LayerNorm(8), normalise_plainly),
        (gelu_tanh, lambda x: tf.nn.gelu(x, approximate=True)),
    ):
        for own, expected in zip(differentiate(ours, [x]), differentiate(plain, [x]), strict=True):
            np.testing.assert_allclose(own, expected, atol=3e-6, rtol=1e-5)
    # Squares of 16 bits would be endless here, and the slope none.
    half = tf.constant([-300.0, 300.0], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(half)
        y = gelu_tanh(half)
    np.testing.assert_array_equal(y, [0.0, 300.0])
    np.testing.assert_allclose(tape.gradient(y, half), [0.0, 1.0])
