"""Attention that works piece by piece and computes its scores twice is the plain formula, gradients included."""

import math

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models import attention
from myxtts.models.attention import attend, draw_kept, find_scale, make_causal_bias, split_key

ROWS, PLACES, HEADS, WIDTH = 3, 7, 2, 4
DROPOUT = 0.3


@pytest.fixture(params=[1 << 20, 1], ids=["in one piece", "row by row"])
def pieces(request, monkeypatch):
    monkeypatch.setattr(attention, "PIECE_SCORES", request.param)
    return 1 if request.param > 1 else ROWS


def make_inputs():
    draw = np.random.default_rng(4)
    return [tf.constant(draw.normal(size=(ROWS, PLACES, HEADS, WIDTH)).astype(np.float32)) for _ in range(3)]


def make_bias():
    return make_causal_bias(tf.sequence_mask([PLACES, 5, 6], PLACES))


def attend_plainly(q, k, v, bias, key, pieces):
    """The formula as a textbook has it, with the masks that the pieces draw."""
    scores = tf.einsum("bshd,bthd->bhst", q, k) / math.sqrt(WIDTH) + bias
    weights = tf.nn.softmax(scores)
    if key is not None:
        rows = ROWS // pieces
        kept = [draw_kept([rows, HEADS, PLACES, PLACES], DROPOUT, each) for each in split_key(key, pieces)]
        weights *= tf.cast(tf.concat(kept, 0), tf.float32) * find_scale(DROPOUT)
    return tf.reshape(tf.einsum("bhst,bthd->bshd", weights, v), [ROWS, PLACES, HEADS * WIDTH])


@pytest.mark.parametrize("key", [None, (5, 6)], ids=["all", "dropped"])
def test_pieces_are_the_plain_formula(pieces, key):
    inputs, bias = make_inputs(), make_bias()
    key = None if key is None else tf.constant(key, tf.int32)
    weights = tf.random.stateless_normal([ROWS, PLACES, HEADS * WIDTH], [1, 2])
    outcomes = []
    for run in (
        lambda q, k, v: attend(q, k, v, bias, dropout=DROPOUT, key=key),
        lambda q, k, v: attend_plainly(q, k, v, bias, key, pieces),
    ):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = run(*inputs)
            total = tf.reduce_sum(y * weights)
        outcomes.append([y, *tape.gradient(total, inputs)])
    for ours, plain in zip(*outcomes, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-6, rtol=1e-5)
