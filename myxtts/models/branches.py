"""A tensor that goes several ways and comes together again, with the same bits every time.

TensorFlow adds three tensors or more in whatever order saves memory: it begins with one whose buffer nobody reads any
more, and which one that is depends on what other threads have done by then. It also turns a chain of sums into one such
sum, and gradients of what is used several times are added by one. Stacked first, they are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


def hand_out(x: tf.Tensor, ways: int) -> tuple[tf.Tensor, ...]:
    """`x` so many times, for each way its own; their gradients are added in order."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., tf.Tensor]]:
        def differentiate(*upstream: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.stack(upstream), 0)

        return tuple(tf.identity(x) for _ in range(ways)), differentiate

    handed: tuple[tf.Tensor, ...] = run(x)
    return handed


def average(ways: Sequence[tf.Tensor]) -> tf.Tensor:
    """The mean of equally shaped tensors, added in order."""
    return tf.reduce_mean(tf.stack(ways), 0)
