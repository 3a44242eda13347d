"""Writing into a tensor that a loop carries."""

from __future__ import annotations

import tensorflow as tf


def write_at(buffer: tf.Tensor, value: tf.Tensor, place: tf.Tensor, *, axis: int) -> tf.Tensor:
    """The buffer with `value`, of length 1 along `axis`, at `place` of that axis.

    In place when nothing else holds the buffer, as in a loop: the op reuses its memory. `tf.tensor_scatter_nd_update`
    copies it there, which for the keys and values of a GPT costs up to half as much as reading all weights.
    """
    rank = len(buffer.shape)
    others = ((1 << rank) - 1) & ~(1 << axis)
    begin = [place if other == axis else 0 for other in range(rank)]
    end = [place + 1 if other == axis else 0 for other in range(rank)]
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=buffer, begin=begin, end=end, strides=[1] * rank, value=value, begin_mask=others, end_mask=others
    )
