"""Scaled dot-product attention, dropout by keys, and layers that are computed again for the backward pass.

Rows lie in the order of time, N = S * B: a compiler for GPUs then reads and writes the heads where they are.

Shape suffixes: B batch, S queries, T keys, N rows, C width, H heads, D channels of a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.hashing import hash_words
from myxtts.models.layers import Part, joining_sums, measure

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


def draw_kept(key_1: tf.Tensor, rate: float, first: int, count: int) -> tf.Tensor:
    """Of so many draws from a key, from number `first` on, which elements are not dropped; both are multiples of `DRAWS`."""
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count // 2], key=key_1, counter=tf.constant([first // DRAWS, 0], tf.uint64), alg=PHILOX, dtype=tf.uint32
    )
    return tf.reshape(tf.bitcast(words, tf.uint16), [count]) >= tf.constant(round(rate * LEVELS), tf.uint16)


def count_draws(shape: Sequence[int]) -> int:
    """Draws that a mask of a shape takes."""
    return -(-math.prod(shape) // DRAWS) * DRAWS


def cut_masks(kept: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """What was drawn as masks of a shape, stacked."""
    masks = tf.reshape(kept, [-1, count_draws(shape)])
    if masks.shape[1] != math.prod(shape):
        masks = masks[:, : math.prod(shape)]
    return tf.reshape(masks, [-1, *shape])


DrawMasks = Callable[[], tuple[list[tf.Tensor], list[tf.Tensor]]]
"""Gives the masks of a block: which of the probabilities of each of its attentions are kept (B, H, S, T), and what its halves are
multiplied by before they are added, (N, C) each."""


def plan_masks(
    x_NC: tf.Tensor, scores: Sequence[Sequence[int]], blocks: int, rate: float, key_1: tf.Tensor, *, at_once: bool
) -> tuple[tf.Tensor, list[DrawMasks]]:
    """What `x` is multiplied by before the first block, and what draws the masks of each.

    Args:
        scores: shapes of those of a block's attentions.
        at_once: whether they are drawn for all blocks together, by few operations, or as they are needed, which takes less memory.
    """
    rows = [*x_NC.shape]
    of_rows, of_scores = count_draws(rows), sum(map(count_draws, scores))
    end = (1 + 2 * blocks) * of_rows

    draw = partial(draw_kept, key_1, rate)

    def make_factors(kept: tf.Tensor) -> list[tf.Tensor]:
        return list(tf.unstack(tf.cast(cut_masks(kept, rows), x_NC.dtype) * find_scale(rate)))

    def cut_scores(kept: tf.Tensor, first: int) -> list[tf.Tensor]:
        firsts = np.cumsum([first, *map(count_draws, scores)]).tolist()
        # Not `tf.split`, which has no kernel for truth on a GPU.
        return [tf.reshape(kept[at : at + math.prod(shape)], shape) for at, shape in zip(firsts, scores, strict=False)]

    def draw_block(block: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        kept = cut_scores(draw(end + block * of_scores, of_scores), 0)
        return kept, make_factors(draw((1 + 2 * block) * of_rows, 2 * of_rows))

    if not at_once:
        return make_factors(draw(0, of_rows))[0], [partial(draw_block, each) for each in range(blocks)]
    kept = draw(0, end + blocks * of_scores)
    factors_NC, *factors = make_factors(kept[:end])
    masks = [cut_scores(kept, end + block * of_scores) for block in range(blocks)]
    drawn = [(each, factors[2 * block : 2 * block + 2]) for block, each in enumerate(masks)]
    return factors_NC, [partial(drawn.__getitem__, block) for block in range(blocks)]


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


def split_heads(
    x_NC: tf.Tensor, sizes: Sequence[Any], parts: int, heads: int, *, head_major: bool = False
) -> list[tf.Tensor]:
    """Query, key and value (or as many parts as lie side by side in the channels), (B, H, S, D) each.

    Args:
        sizes: positions and batch.
        head_major: whether the parts of each head lie together, and not the heads of each part.
    """
    inner = [heads, parts] if head_major else [parts, heads]
    cut = tf.reshape(x_NC, [*sizes, *inner, x_NC.shape[-1] // (parts * heads)])
    return list(tf.unstack(tf.transpose(cut, [3, 1, 2, 0, 4] if head_major else [2, 1, 3, 0, 4])))


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
    """The values weighted by the softmax of the scores, heads joined: (N, H * D).

    Args:
        bias: float32, added to the scores (B, H, S, T). Has no gradient.
        scores: how many to compute at a time, row after row of the batch, and again in the backward pass: as many as the caches of
            a processor hold, where writing them to fresh memory costs more than the arithmetic. 0: all at once, by few operations.
        kept: which probabilities are not dropped, bool (B, H, S, T); None for all.
        scale: what those that are kept are multiplied by.
    """
    batch, heads, queries, width = measure(q_BHSD)
    pieces = _cut_rows(batch, heads * queries * measure(k_BHTD)[2], scores)
    # A processor scales what is smaller than the scores. A compiler for GPUs makes one kernel of all that is done to them.
    shrink = 1 / math.sqrt(width)
    of_q, of_scores, of_y, of_weights = (shrink, 1.0, scale, 1.0) if scores else (1.0, shrink, 1.0, scale)

    def take(x: tf.Tensor, rows: slice) -> tf.Tensor:
        return x if len(pieces) == 1 else x[rows]

    def weigh(rows: slice, q_BHSD: tf.Tensor, k_BHTD: tf.Tensor) -> tf.Tensor:
        scores_BHST = tf.cast(tf.matmul(take(q_BHSD, rows), take(k_BHTD, rows), transpose_b=True), tf.float32)
        scores_BHST = _scale(scores_BHST, of_scores)
        weights_BHST = tf.nn.softmax(scores_BHST if bias is None else scores_BHST + take(bias, rows))
        return tf.cast(weights_BHST, q_BHSD.dtype)

    def drop(x_BHST: tf.Tensor, rows: slice) -> tf.Tensor:
        # Not tf.where, which is slower than a product.
        return x_BHST if kept is None else x_BHST * _scale(tf.cast(take(kept, rows), x_BHST.dtype), of_weights)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(q_BHSD: tf.Tensor, k_BHTD: tf.Tensor, v_BHTD: tf.Tensor) -> Any:
        y: list[tf.Tensor] = []
        weights: list[tf.Tensor] = []
        for rows in pieces:
            # One piece after another, so that each reuses the memory of the last.
            with tf.control_dependencies(y[-1:]):
                weights.append(weigh(rows, q_BHSD, k_BHTD))
                y.append(tf.matmul(drop(weights[-1], rows), take(v_BHTD, rows)))
        y_BHSD = _scale(_join(y), of_y)

        def differentiate(dy_BHSD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            dz_BHSD = _scale(dy_BHSD, of_y)
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
                    ds_BHST = tf.cast(_scale((dw_BHST - mean) * wide_BHST, of_scores), q_BHSD.dtype)
                    dq.append(tf.matmul(ds_BHST, take(k_BHTD, rows)))
                    dk.append(tf.matmul(ds_BHST, take(q_BHSD, rows), transpose_a=True))
            return _join(dq), _join(dk), _join(dv)

        return y_BHSD, differentiate

    y_BHSD = run(_scale(q_BHSD, of_q), k_BHTD, v_BHTD)
    return tf.reshape(tf.transpose(y_BHSD, [2, 0, 1, 3]), [queries * batch, heads * width])


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
    """One new position against cached keys and values, heads joined: (B, H * D)."""
    batch, heads, _, width = measure(q_BH1D)
    q_BH1D *= 1 / math.sqrt(width)
    scores_BH1T = tf.cast(tf.matmul(q_BH1D, k_BHTD, transpose_b=True), tf.float32) + tf.reshape(
        bias_BT, [batch, 1, 1, -1]
    )
    y_BH1D = tf.matmul(tf.cast(tf.nn.softmax(scores_BH1T), q_BH1D.dtype), v_BHTD)
    return tf.reshape(y_BH1D, [batch, heads * width])


def run_part(part: Part, x: tf.Tensor, *, joins: bool, again: bool, **options: Any) -> tf.Tensor:
    """`part(x, ...)`.

    Args:
        joins: whether sums over rows become one, see `joining_sums`.
        again: whether it is computed again for the backward pass, for which only `x` is kept. What else it reads then has no gradient:
            masks, dropout keys.
    """

    def run(x: tf.Tensor) -> tf.Tensor:
        with joining_sums(math.prod(measure(x)[:-1]), part) if joins else nullcontext():
            return part(x, **options)

    return tf.recompute_grad(run)(x) if again else run(x)
