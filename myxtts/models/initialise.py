"""How a fresh network starts, as the table of weights says."""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from myxtts.models.names import Named, find_variable, make_front_end_constant
from myxtts.models.weights import Weight

FOLLOWING = ("norm", "copy")


def initialise_weights(model: Named, seed: int) -> None:
    """Gives every weight of a built part its start: a pure function of the seed and the weight's name, whatever else
    is built before it."""
    weights = model.list_weights()
    for weight in weights:
        if weight.start.kind not in FOLLOWING:
            variable = find_variable(model, weight.variable)
            variable.assign(_draw(weight, variable, seed))
    for weight in weights:
        if weight.start.kind in FOLLOWING:
            source = find_variable(model, weight.start.source).value
            followed = _measure_lengths(source) if weight.start.kind == "norm" else source
            find_variable(model, weight.variable).assign(followed)


def _draw(weight: Weight, variable: Any, seed: int) -> tf.Tensor:
    kind, value = weight.start.kind, weight.start.value
    key = tf.constant([seed, zlib.crc32(weight.key.encode())], tf.int64)
    shape = weight.variable_shape
    if kind == "normal":
        return tf.random.stateless_normal(shape, key, stddev=value, alg="philox")
    if kind == "uniform":
        return tf.random.stateless_uniform(shape, key, -value, value, alg="philox")
    if kind == "constant":
        return tf.fill(shape, tf.cast(value, variable.dtype))
    assert kind == "front_end", f"{weight.key} starts as {kind}, which nobody knows"
    return tf.reshape(make_front_end_constant(weight), shape)


def _measure_lengths(kernel: tf.Tensor) -> tf.Tensor:
    """The lengths of a kernel's vectors, one for each place of its last axis."""
    return tf.sqrt(tf.reduce_sum(tf.square(kernel), list(range(kernel.shape.rank - 1))))
