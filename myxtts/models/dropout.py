"""Dropout whose mask is a pure function of a key.

Not `keras.layers.Dropout`: its state moves on with every call, so activations computed again in the backward pass
would get another mask, and a resumed run would differ from an unbroken one.
"""

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
