"""Gradient checkpointing: a layer's activations are computed again in the backward pass instead of kept."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def recompute(layer: Any, x: tf.Tensor, *constants: Any) -> tf.Tensor:
    """`layer(x, *constants)`, keeping only `x` for the backward pass.

    Args:
        constants: what needs no gradient: masks, dropout keys. They are closed over, since `tf.recompute_grad`
            would differentiate every argument, and takes no keyword arguments in graph mode.
    """
    return tf.recompute_grad(lambda inputs: layer(inputs, *constants))(x)
