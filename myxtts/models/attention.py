"""Scaled dot-product attention, dropout by keys, and layers that are computed again for the backward pass.

Shape suffixes: B batch, S queries, T keys, H heads, D channels of a head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.hashing import hash_words
from myxtts.models.layers import measure

LEVELS = 1 << 16
"""Steps in which a rate can be kept. 16 bits, because drawing random bits is what dropout costs on a CPU."""
PHILOX = 1
"""The number of that generator in TensorFlow: the same bits on every device."""
DRAWS = 8
"""Of 16 bits, that it makes at a time."""


def make_dropout_key(seed: int, step: int, micro_batch: int | NDArray[np.integer] = 0) -> tf.Tensor:
    """The key of all masks of one forward pass, uint64 of shape (1,), or of several. A mask is drawn from it and the number of
    its place in the model: nothing has to be derived while a step runs.

    Args:
        seed: of the run.
        step: global step.
        micro_batch: position within the step when gradients are accumulated, and the replica's, counted on.
    """
    return tf.constant(hash_words(seed, step, micro_batch))


def draw_kept(
    shape: list[int], rate: float, key_1: tf.Tensor, *, stream: int, first: int = 0, count: int = 1
) -> tf.Tensor:
    """Masks of a shape, stacked: which elements are not dropped, bool. They are the same drawn one by one or at once.

    Args:
        stream: of random bits: each use has its own.
        first: number of the first mask in it.
    """
    elements = math.prod(shape)
    room = -(-elements // DRAWS)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count * room * DRAWS // 2],
        key=key_1,
        counter=tf.constant([first * room, stream], tf.uint64),
        alg=PHILOX,
        dtype=tf.uint32,
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint16), [count, room * DRAWS])
    if elements % DRAWS:
        draws = draws[:, :elements]
    return tf.reshape(draws >= tf.constant(round(rate * LEVELS), tf.uint16), [count, *shape])


def draw_factors(
    shape: list[int], dtype: Any, rate: float, key_1: tf.Tensor, *, stream: int, first: int = 0, count: int = 1
) -> tf.Tensor:
    """Masks to multiply by: 0 for what is dropped; what is kept is scaled up to keep the mean."""
    kept = draw_kept(shape, rate, key_1, stream=stream, first=first, count=count)
    return tf.cast(kept, dtype) * find_scale(rate)


def find_scale(rate: float) -> float:
    """What the elements that are not dropped are multiplied by."""
    return LEVELS / (LEVELS - round(rate * LEVELS))


HIDDEN = -1e9
"""Added to a score that must not be seen. Finite, and exp() of it is exactly 0: hidden content cannot leak a bit."""

CACHED_SCORES = 1 << 20
"""Scores to compute at a time on a CPU: 4 MiB, which its caches hold."""
MOST_PIECES = 8


def make_causal_bias(visible_BS: tf.Tensor) -> tf.Tensor:
    """What to add to the scores so that a position sees itself and earlier visible ones, float32 (B, 1, S, S)."""
    length = measure(visible_BS)[1]
    places = tf.range(length)
    earlier_SS = places[:, None] >= places[None, :]
    seen_BSS = tf.logical_and(earlier_SS[None], visible_BS[:, None, :])
    return tf.where(seen_BSS, 0.0, HIDDEN)[:, None]


def split_heads(x_BSC: tf.Tensor, parts: int, heads: int, *, head_major: bool = False) -> list[tf.Tensor]:
    """Query, key and value (or as many parts as lie side by side in the channels), (B, H, S, D) each.

    Args:
        head_major: whether the parts of each head lie together, and not the heads of each part.
    """
    batch, length, width = measure(x_BSC)
    inner = [heads, parts] if head_major else [parts, heads]
    cut = tf.reshape(x_BSC, [batch, length, *inner, width // (parts * heads)])
    return list(tf.unstack(tf.transpose(cut, [3, 0, 2, 1, 4] if head_major else [2, 0, 3, 1, 4])))


def attend(
    q_BHSD: tf.Tensor,
    k_BHTD: tf.Tensor,
    v_BHTD: tf.Tensor,
    bias: tf.Tensor | None = None,
    *,
    scores: int = 0,
    kept: tf.Tensor | None = None,
    scale: float = 1.0,
) -> tf.Tensor:
    """The values weighted by the softmax of the scores, heads joined: (B, S, H * D).

    Args:
        bias: float32, added to the scores (B, H, S, T). Has no gradient.
        scores: how many to compute at a time, row after row of the batch, and again in the backward pass: as many as the caches of
            a processor hold, where writing them to fresh memory costs more than the arithmetic. 0: all at once, by few operations.
        kept: which probabilities are not dropped, bool (B, H, S, T); None for all.
        scale: what those that are kept are multiplied by.
    """
    batch, heads, queries, width = measure(q_BHSD)
    pieces = _cut_rows(batch, heads * queries * measure(k_BHTD)[2], scores)

    def take(x: tf.Tensor, rows: slice) -> tf.Tensor:
        return x if len(pieces) == 1 else x[rows]

    def weigh(rows: slice, q_BHSD: tf.Tensor, k_BHTD: tf.Tensor) -> tf.Tensor:
        scores_BHST = tf.cast(tf.matmul(take(q_BHSD, rows), take(k_BHTD, rows), transpose_b=True), tf.float32)
        weights_BHST = tf.nn.softmax(scores_BHST if bias is None else scores_BHST + take(bias, rows))
        return tf.cast(weights_BHST, q_BHSD.dtype)

    def drop(x_BHST: tf.Tensor, rows: slice) -> tf.Tensor:
        # Not tf.where, which is slower than a product.
        return x_BHST if kept is None else x_BHST * tf.cast(take(kept, rows), x_BHST.dtype)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(q_BHSD: tf.Tensor, k_BHTD: tf.Tensor, v_BHTD: tf.Tensor) -> Any:
        y: list[tf.Tensor] = []
        weights: list[tf.Tensor] = []
        for rows in pieces:
            # One piece after another, so that each reuses the memory of the last.
            with tf.control_dependencies(y[-1:]):
                weights.append(weigh(rows, q_BHSD, k_BHTD))
                y.append(tf.matmul(drop(weights[-1], rows), take(v_BHTD, rows)))
        # What is kept is scaled up here and not among the scores, of which there are many more.
        y_BHSD = _scale(_join(y), scale)

        def differentiate(dy_BHSD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            dz_BHSD = _scale(dy_BHSD, scale)
            # What the softmax's gradient subtracts. A processor finds it without touching the scores again; a compiler for GPUs makes
            # one kernel of all that is done to them.
            mean_BHS1 = _sum_products(tf.cast(dy_BHSD, tf.float32), tf.cast(y_BHSD, tf.float32)) if scores else None
            dq: list[tf.Tensor] = []
            dk: list[tf.Tensor] = []
            dv: list[tf.Tensor] = []
            for index, rows in enumerate(pieces):
                with tf.control_dependencies([dk[-1] if dk else dy_BHSD]):
                    weights_BHST = weigh(rows, q_BHSD, k_BHTD) if scores else weights[index]
                    dv.append(tf.matmul(drop(weights_BHST, rows), take(dz_BHSD, rows), transpose_a=True))
                    dw_BHST = tf.cast(tf.matmul(take(dz_BHSD, rows), take(v_BHTD, rows), transpose_b=True), tf.float32)
                    dw_BHST, wide_BHST = drop(dw_BHST, rows), tf.cast(weights_BHST, tf.float32)
                    mean = _sum_products(dw_BHST, wide_BHST) if mean_BHS1 is None else take(mean_BHS1, rows)
                    ds_BHST = tf.cast((dw_BHST - mean) * wide_BHST, q_BHSD.dtype)
                    dq.append(tf.matmul(ds_BHST, take(k_BHTD, rows)))
                    dk.append(tf.matmul(ds_BHST, take(q_BHSD, rows), transpose_a=True))
            return _join(dq), _join(dk), _join(dv)

        return y_BHSD, differentiate

    y_BHSD = run(q_BHSD * (1 / math.sqrt(width)), k_BHTD, v_BHTD)
    return tf.reshape(tf.transpose(y_BHSD, [0, 2, 1, 3]), [batch, queries, heads * width])


def _cut_rows(batch: Any, row_scores: Any, scores: int) -> list[slice]:
    """Slices of the batch with about so many scores each, but no more than a graph should hold."""
    if not scores or not isinstance(batch, int) or not isinstance(row_scores, int):
        return [slice(None)]
    rows = max(scores // row_scores, -(-batch // MOST_PIECES), 1)
    return [slice(first, first + rows) for first in range(0, batch, rows)]


def _join(pieces: list[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def _sum_products(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * y, -1, keepdims=True)


def _scale(x: tf.Tensor, factor: float) -> tf.Tensor:
    return x if factor == 1 else x * factor


def attend_cached(q_BH1D: tf.Tensor, k_BHTD: tf.Tensor, v_BHTD: tf.Tensor, bias_BT: tf.Tensor) -> tf.Tensor:
    """One new position against cached keys and values, heads joined: (B, 1, H * D)."""
    batch, heads, _, width = measure(q_BH1D)
    q_BH1D *= 1 / math.sqrt(width)
    scores_BH1T = tf.cast(tf.matmul(q_BH1D, k_BHTD, transpose_b=True), tf.float32) + bias_BT[:, None, None]
    y_BH1D = tf.matmul(tf.cast(tf.nn.softmax(scores_BH1T), q_BH1D.dtype), v_BHTD)
    return tf.reshape(y_BH1D, [batch, 1, heads * width])


def recompute(layer: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """`layer(x)`, keeping only `x` for the backward pass. What else the layer reads has no gradient: masks, dropout keys."""
    # The function is there because `tf.recompute_grad` differentiates every argument, and takes no keywords in graph mode.
    return tf.recompute_grad(lambda inputs: layer(inputs))(x)
