"""Logits -> the next code, in the order of the reference: repetition penalty, temperature, top-k, top-p, draw.

Shape suffixes: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

ALWAYS_SEEN = 1
"""A code that counts as already said from the start: the reference fills the prefix with this id."""


class Sampling(NamedTuple):
    """How codes are chosen. Pass tensors through a compiled function to change them without tracing it again.

    The defaults are those of the published v2 configuration.
    """

    temperature: float | tf.Tensor = 0.75
    top_k: int | tf.Tensor = 50
    """Codes kept; 0 keeps all."""
    top_p: float | tf.Tensor = 0.85
    repetition_penalty: float | tf.Tensor = 5.0


class Greedy(NamedTuple):
    """The most likely code, after the repetition penalty."""

    repetition_penalty: float | tf.Tensor = 1.0


def choose_code(logits_BV: tf.Tensor, seen_BV: tf.Tensor, rule: Sampling | Greedy, draw_B: tf.Tensor) -> tf.Tensor:
    """The next code of each row, int32.

    Args:
        seen_BV: whether a code was said before.
        draw_B: uniform in [0, 1), one per row; unused when greedy.
    """
    logits = tf.cast(logits_BV, tf.float32)
    if isinstance(rule, Greedy):
        return tf.argmax(penalise(logits, seen_BV, rule.repetition_penalty), -1, output_type=tf.int32)
    mass_BV = tf.cumsum(tf.nn.softmax(shape_scores(logits, seen_BV, rule)), -1)
    # Strictly above the draw, so that a code without any mass is never hit.
    return tf.reduce_sum(tf.cast(mass_BV <= draw_B[:, None] * mass_BV[:, -1:], tf.int32), -1)


def shape_scores(logits_BV: tf.Tensor, seen_BV: tf.Tensor, rule: Sampling) -> tf.Tensor:
    """Scores to draw from; codes that must not come are at minus infinity."""
    scores_BV = penalise(logits_BV, seen_BV, rule.repetition_penalty) / rule.temperature
    ranked_BV = tf.sort(scores_BV)
    codes = tf.shape(scores_BV)[-1]
    kept = tf.where(tf.equal(rule.top_k, 0), codes, tf.minimum(rule.top_k, codes))
    least_B1 = tf.gather(ranked_BV, [codes - kept], axis=-1)
    ranked_BV = tf.where(ranked_BV < least_B1, -float("inf"), ranked_BV)
    # The tail that holds at most 1 - p of the mass goes; the best code always stays.
    tail_BV = tf.cumsum(tf.nn.softmax(ranked_BV), -1) <= 1 - rule.top_p
    last = tf.minimum(tf.reduce_sum(tf.cast(tail_BV, tf.int32), -1), codes - 1)
    least_B1 = tf.maximum(least_B1, tf.gather(ranked_BV, last, batch_dims=1)[:, None])
    return tf.where(scores_BV < least_B1, -float("inf"), scores_BV)


def penalise(logits_BV: tf.Tensor, seen_BV: tf.Tensor, penalty: float | tf.Tensor) -> tf.Tensor:
    """Logits with those of seen codes moved down: negative ones times, positive ones divided by the penalty."""
    lowered_BV = tf.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return tf.where(seen_BV, lowered_BV, logits_BV)
