"""Scaled dot-product attention, dropout by keys, and layers that are computed again for the backward pass.

Shape suffixes: B batch, S queries, T keys, H heads, D channels of a head."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from myxtts.models.layers import measure

LEVELS = 1 << 16
"""Steps in which a rate can be kept. 16 bits, because drawing random bits is what dropout costs on a CPU."""


def make_dropout_key(seed: tf.Tensor | int, step: tf.Tensor | int, micro_batch: tf.Tensor | int = 0) -> tf.Tensor:
    """The key of all masks of one forward pass, int32 of shape (2,).

    Args:
        seed: of the run.
        step: global step; may be a tensor, so that a compiled step need not be traced again.
        micro_batch: position within the step when gradients are accumulated, and the rank's, counted on.
    """
    base = tf.stack([tf.cast(seed, tf.int32), tf.cast(step, tf.int32)])
    return tf.random.fold_in(base, tf.cast(micro_batch, tf.int32), alg="philox")


def split_key(key_2: tf.Tensor, count: int) -> tf.Tensor:
    """`count` independent keys, one per row."""
    return tf.random.stateless_uniform([count, 2], key_2, minval=None, maxval=None, dtype=tf.int32, alg="philox")


def drop(x: tf.Tensor, rate: float, key_2: tf.Tensor) -> tf.Tensor:
    """`x` with a share of `rate` of its elements set to zero and the others scaled up to keep the mean."""
    if not round(rate * LEVELS):
        return x
    return x * (tf.cast(draw_kept(measure(x), rate, key_2), x.dtype) * find_scale(rate))


def draw_kept(shape: list[Any], rate: float, key_2: tf.Tensor) -> tf.Tensor:
    """Which elements are not dropped, bool."""
    count = math.prod(shape)
    words = tf.random.stateless_uniform(
        [(count + 1) // 2], key_2, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
    return tf.reshape(draws >= tf.constant(round(rate * LEVELS), tf.uint16), shape)


def find_scale(rate: float) -> float:
    """What the elements that are not dropped are multiplied by."""
    return LEVELS / (LEVELS - round(rate * LEVELS))


HIDDEN = -1e9
"""Added to a score that must not be seen. Finite, and exp() of it is exactly 0: hidden content cannot leak a bit."""

PIECE_SCORES = 1 << 20
"""Scores computed at a time: 4 MiB."""
MOST_PIECES = 8


def make_causal_bias(visible_BS: tf.Tensor) -> tf.Tensor:
    """What to add to the scores so that a position sees itself and earlier visible ones, float32 (B, 1, S, S)."""
    length = measure(visible_BS)[1]
    places = tf.range(length)
    earlier_SS = places[:, None] >= places[None, :]
    seen_BSS = tf.logical_and(earlier_SS[None], visible_BS[:, None, :])
    return tf.where(seen_BSS, 0.0, HIDDEN)[:, None]


def attend(
    q_BSHD: tf.Tensor,
    k_BTHD: tf.Tensor,
    v_BTHD: tf.Tensor,
    bias: tf.Tensor | None = None,
    *,
    dropout: float = 0.0,
    key: tf.Tensor | None = None,
) -> tf.Tensor:
    """The values weighted by the softmax of the scores, heads joined: (B, S, H * D).

    Works through the batch a few rows at a time and keeps no scores for the backward pass, which computes them
    again: they are by far the largest tensors of a transformer, and writing them to fresh memory costs more than
    the arithmetic.

    Args:
        bias: float32, added to the scores (B, H, S, T). Has no gradient.
        dropout: share of the probabilities to drop; only with a key.
        key: key of the dropout mask, None for no dropout.
    """
    batch, queries, heads, width = measure(q_BSHD)
    pieces = _cut_rows(batch, heads, queries, measure(k_BTHD)[1])
    keys = split_key(key, len(pieces)) if key is not None and dropout else None
    scale = 1.0 if keys is None else find_scale(dropout)

    def weigh(rows: slice, q_BHSD: tf.Tensor, k_BHTD: tf.Tensor) -> tf.Tensor:
        scores_BHST = tf.cast(tf.matmul(q_BHSD[rows], k_BHTD[rows], transpose_b=True), tf.float32)
        return tf.nn.softmax(scores_BHST if bias is None else scores_BHST + bias[rows])

    def draw(index: int, weights_BHST: tf.Tensor) -> tf.Tensor | None:
        return None if keys is None else draw_kept(measure(weights_BHST), dropout, keys[index])

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(q_BHSD: tf.Tensor, k_BHTD: tf.Tensor, v_BHTD: tf.Tensor) -> Any:
        y: list[tf.Tensor] = []
        for index, rows in enumerate(pieces):
            # One piece after another, so that each reuses the memory of the last.
            with tf.control_dependencies(y[-1:]):
                weights_BHST = weigh(rows, q_BHSD, k_BHTD)
                dropped_BHST = _drop(weights_BHST, draw(index, weights_BHST))
                y.append(tf.matmul(tf.cast(dropped_BHST, v_BHTD.dtype), v_BHTD[rows]))
        # What is kept is scaled up here and not among the scores, of which there are many more.
        y_BHSD = tf.concat(y, 0) * scale

        def differentiate(dy_BHSD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # What the softmax's gradient subtracts, without touching the scores.
            mean_BHS1 = tf.reduce_sum(tf.cast(dy_BHSD, tf.float32) * tf.cast(y_BHSD, tf.float32), -1, keepdims=True)
            dz_BHSD = dy_BHSD * scale
            dq: list[tf.Tensor] = []
            dk: list[tf.Tensor] = []
            dv: list[tf.Tensor] = []
            for index, rows in enumerate(pieces):
                with tf.control_dependencies([dk[-1] if dk else dy_BHSD]):
                    weights_BHST = weigh(rows, q_BHSD, k_BHTD)
                    kept_BHST = draw(index, weights_BHST)
                    dropped_BHST = tf.cast(_drop(weights_BHST, kept_BHST), dy_BHSD.dtype)
                    dv.append(tf.matmul(dropped_BHST, dz_BHSD[rows], transpose_a=True))
                    dw_BHST = tf.cast(tf.matmul(dz_BHSD[rows], v_BHTD[rows], transpose_b=True), tf.float32)
                    ds_BHST = (_drop(dw_BHST, kept_BHST) - mean_BHS1[rows]) * weights_BHST
                    ds_BHST = tf.cast(ds_BHST, q_BHSD.dtype)
                    dq.append(tf.matmul(ds_BHST, k_BHTD[rows]))
                    dk.append(tf.matmul(ds_BHST, q_BHSD[rows], transpose_a=True))
            return tf.concat(dq, 0), tf.concat(dk, 0), tf.concat(dv, 0)

        return y_BHSD, differentiate

    q_BHSD = tf.transpose(q_BSHD * (1 / math.sqrt(width)), [0, 2, 1, 3])
    y_BHSD = run(q_BHSD, tf.transpose(k_BTHD, [0, 2, 1, 3]), tf.transpose(v_BTHD, [0, 2, 1, 3]))
    return tf.reshape(tf.transpose(y_BHSD, [0, 2, 1, 3]), [batch, queries, heads * width])


def _cut_rows(batch: Any, heads: int, queries: Any, keys: Any) -> list[slice]:
    """Slices of the batch whose scores fit a cache, but no more than a graph should hold."""
    if not all(isinstance(size, int) for size in (batch, queries, keys)):
        return [slice(None)]
    rows = max(PIECE_SCORES // (heads * queries * keys), -(-batch // MOST_PIECES), 1)
    return [slice(first, first + rows) for first in range(0, batch, rows)]


def _drop(x: tf.Tensor, kept: tf.Tensor | None) -> tf.Tensor:
    # Not tf.where, which is slower than a product.
    return x if kept is None else x * tf.cast(kept, x.dtype)


def attend_cached(q_B1HD: tf.Tensor, k_BHTD: tf.Tensor, v_BHTD: tf.Tensor, bias_BT: tf.Tensor) -> tf.Tensor:
    """One new position against cached keys and values, heads joined: (B, 1, H * D)."""
    batch, _, heads, width = measure(q_B1HD)
    q_BH1D = tf.reshape(q_B1HD * (1 / math.sqrt(width)), [batch, heads, 1, width])
    scores_BH1T = tf.cast(tf.matmul(q_BH1D, k_BHTD, transpose_b=True), tf.float32) + bias_BT[:, None, None]
    y_BH1D = tf.matmul(tf.cast(tf.nn.softmax(scores_BH1T), q_B1HD.dtype), v_BHTD)
    return tf.reshape(y_BH1D, [batch, 1, heads * width])


def recompute(layer: Any, x: tf.Tensor, *constants: Any) -> tf.Tensor:
    """`layer(x, *constants)`, keeping only `x` for the backward pass.

    Args:
        constants: what needs no gradient: masks, dropout keys. They are closed over, since `tf.recompute_grad`
            would differentiate every argument, and takes no keyword arguments in graph mode.
    """
    return tf.recompute_grad(lambda inputs: layer(inputs, *constants))(x)
