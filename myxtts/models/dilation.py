"""Dilated convolutions with a gradient on every device.

TensorFlow has none for their kernels on a CPU. Samples a dilation apart, side by side in a row of their own, are convolved by
the same kernel without dilation, and that has one. (The gradient of the input is a dilated convolution itself.) Forward it is
TensorFlow's own operation, which is faster.

Shape suffixes: B batch, T time, I in, O out, K kernel.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.models.layers import measure


def convolve(x_BTI: tf.Tensor, kernel_KIO: tf.Tensor, dilation: int = 1) -> tf.Tensor:
    """The convolution over time (B, T, O) with an odd kernel and zeros around."""
    if dilation == 1:
        return tf.nn.conv1d(x_BTI, kernel_KIO, 1, "SAME")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x_BTI: tf.Tensor, kernel_KIO: tf.Tensor) -> Any:
        def differentiate(upstream_BTO: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            turned_KOI = tf.transpose(tf.reverse(kernel_KIO, [0]), [0, 2, 1])
            of_x = tf.nn.conv1d(upstream_BTO, turned_KOI, 1, "SAME", dilations=dilation)
            return of_x, _differentiate_kernel(x_BTI, upstream_BTO, kernel_KIO.shape, dilation)

        return tf.nn.conv1d(x_BTI, kernel_KIO, 1, "SAME", dilations=dilation), differentiate

    return run(x_BTI, kernel_KIO)


def _differentiate_kernel(x_BTI: tf.Tensor, upstream_BTO: tf.Tensor, shape: tf.TensorShape, dilation: int) -> tf.Tensor:
    gradient_1KIO = tf.raw_ops.Conv2DBackpropFilter(
        input=_part(x_BTI, dilation)[:, None],
        filter_sizes=[1, *shape],
        out_backprop=_part(upstream_BTO, dilation)[:, None],
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    return gradient_1KIO[0]


def _part(x_BTC: tf.Tensor, dilation: int) -> tf.Tensor:
    """Rows of every `dilation`-th frame, zeros at their ends where they are not equally long."""
    batch, time, channels = measure(x_BTC)
    filled = tf.pad(x_BTC, [[0, 0], [0, -time % dilation], [0, 0]])
    grid = tf.reshape(filled, [batch, -1, dilation, channels])
    return tf.reshape(tf.transpose(grid, [0, 2, 1, 3]), [batch * dilation, -1, channels])
