"""The small layers the parts are made of. Variables exist from construction on and start at zero or one.

Shape suffixes: B batch, T time, C channels, I inputs, O outputs, K kernel, R rank of a pair; N any leading axes.
Variables are float32, also under a mixed policy; under a plain 16-bit dtype all but those of norms have 16 bits. A
layer computes in the dtype of its input, norms always in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf

NORM_EPSILON = 1e-5
"""Of every norm in the checkpoint; Keras' default of 1e-3 is not compatible."""


class Part(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """A Keras layer whose variables exist as soon as it does, so that weights can be loaded before any call.

    Args:
        dtype: a dtype or mixed-precision policy. Always given on: Keras' global policy is per thread, so a worker
            thread would silently compute in float32.
    """

    def __init__(self, *, dtype: Any = "float32", name: str | None = None):
        super().__init__(dtype=dtype, name=name, autocast=False)
        self.built = True

    def add_variable(self, name: str, shape: tuple[int, ...], start: str = "zeros", **options: Any) -> Any:
        """A variable of the policy's dtype (unless `dtype` says otherwise); `initialise_weights` sets random starts."""
        return self.add_weight(name=name, shape=shape, initializer=start, autocast=False, **options)


_given: ContextVar[Mapping[int, tf.Tensor] | None] = ContextVar("given", default=None)


@contextmanager
def reading(values: Mapping[int, tf.Tensor]) -> Iterator[None]:
    """Within, `read` takes these for the values of variables, by their `id`, where they have the dtype that is asked for."""
    token = _given.set(values)
    try:
        yield
    finally:
        _given.reset(token)


def read(variable: Any, dtype: Any) -> tf.Tensor:
    """A variable's value in the dtype one computes in."""
    given = (_given.get() or {}).get(id(variable))
    return given if given is not None and given.dtype == dtype else tf.cast(variable.value, dtype)


@contextmanager
def joining_sums(rows: Any, *parts: Part) -> Iterator[None]:
    """Within, `read` gives each vector of some parts as so many rows. Their gradients are sums over rows: together they are one, for
    which a compiler makes one kernel."""
    vectors = [each for part in parts for each in part.trainable_variables if len(each.shape) == 1]
    dtypes = [parts[0].compute_dtype if each.name == "bias" else "float32" for each in vectors]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def spread(*values: tf.Tensor) -> Any:
        def differentiate(*upstream_NC: tf.Tensor) -> list[tf.Tensor]:
            joined_NC = tf.concat([tf.cast(each, tf.float32) for each in upstream_NC], 1)
            sums = tf.split(tf.reduce_sum(joined_NC, 0), [each.shape[0] for each in values])
            return [tf.cast(total, each.dtype) for total, each in zip(sums, values, strict=True)]

        return [tf.broadcast_to(each, [rows, each.shape[0]]) for each in values], differentiate

    spread_NC = spread(*map(read, vectors, map(tf.as_dtype, dtypes)))
    with reading({**(_given.get() or {}), **dict(zip(map(id, vectors), spread_NC, strict=True))}):
        yield


def measure(tensor: tf.Tensor) -> list[Any]:
    """The sizes of a tensor's axes: Python numbers where they are known, scalar tensors where not."""
    if tensor.shape.is_fully_defined():
        return list(tensor.shape)
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(tensor.shape)]


def swap_rows(x: tf.Tensor) -> tf.Tensor:
    """Batch and time, the first two axes, the other way round."""
    return tf.transpose(x, [1, 0, 2])


def mask_lengths(lengths_B: tf.Tensor, length: Any) -> tf.Tensor:
    """Which of `length` places lie within each row, bool. In the dtype of the lengths: `tf.sequence_mask` would compare as int32, which
    lives in host memory."""
    return tf.range(length, dtype=lengths_B.dtype) < lengths_B[:, None]


class Dense(Part):
    """`x @ kernel + bias` over the last axis, and what a pair of thin matrices adds to it where it has one (`add_pair`)."""

    def __init__(self, inputs: int, outputs: int, *, use_bias: bool = True, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.kernel = self.add_variable("kernel", (inputs, outputs))
        self.bias = self.add_variable("bias", (outputs,)) if use_bias else None
        self.down: Any = None
        self.up: Any = None
        self.factor = 1.0

    def add_pair(self, rank: int, factor: float) -> None:
        """From here on `factor * (x @ down @ up)` is added. Both are float32, to be trained while the kernel is not (LoRA)."""
        inputs, outputs = self.kernel.shape
        self.down = self.add_variable("down", (inputs, rank), dtype="float32")
        self.up = self.add_variable("up", (rank, outputs), dtype="float32")
        self.factor = factor

    def call(self, x_NI: tf.Tensor) -> tf.Tensor:
        kernel_IO = read(self.kernel, x_NI.dtype)
        # Flat, because a product of a batch with one matrix runs as a batch of small products otherwise.
        flat_NI = tf.reshape(x_NI, [-1, kernel_IO.shape[0]])
        flat = tf.matmul(flat_NI, kernel_IO)
        if self.down is not None:
            # As columns: of two products that share an operand, XLA makes one, and copies the kernel into it in each step.
            thin_RN = tf.matmul(read(self.down, x_NI.dtype), flat_NI, transpose_a=True, transpose_b=True) * self.factor
            flat += tf.matmul(thin_RN, read(self.up, x_NI.dtype), transpose_a=True)
        if self.bias is not None:
            bias = read(self.bias, x_NI.dtype)
            flat = tf.nn.bias_add(flat, bias) if bias.shape.rank == 1 else flat + bias
        return tf.reshape(flat, [*measure(x_NI)[:-1], kernel_IO.shape[1]])


class Conv1D(Part):
    """A convolution over time with torch's symmetric padding. The length becomes ceil(length / stride); taps are odd."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, use_bias: bool = True, dtype: Any):
        super().__init__(dtype=dtype)
        self.stride = stride
        self.kernel = self.add_variable("kernel", (kernel, inputs, outputs))
        self.bias = self.add_variable("bias", (outputs,)) if use_bias else None

    def call(self, x_BTI: tf.Tensor) -> tf.Tensor:
        kernel_KIO = read(self.kernel, x_BTI.dtype)
        if self.stride == 1:
            y_BTO = tf.nn.conv1d(x_BTI, kernel_KIO, 1, "SAME")
        else:
            # "SAME" would pad on the right only when the length is even.
            side = (kernel_KIO.shape[0] - 1) // 2
            y_BTO = tf.nn.conv1d(tf.pad(x_BTI, [[0, 0], [side, side], [0, 0]]), kernel_KIO, self.stride, "VALID")
        return y_BTO if self.bias is None else tf.nn.bias_add(y_BTO, read(self.bias, x_BTI.dtype))


class LayerNorm(Part):
    """Normalisation over the last axis with gamma and beta.

    Args:
        fused: by one kernel of TensorFlow's. A GPU that launches each kernel by itself is faster so, a CPU is not.
    """

    def __init__(self, width: int, *, fused: bool = False, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.normalise = normalise_at_once if fused else normalise
        self.gamma = self.add_variable("gamma", (width,), "ones", dtype="float32")
        self.beta = self.add_variable("beta", (width,), dtype="float32")

    def call(self, x_NC: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.scale(self.normalise(x_NC, [-1])), x_NC.dtype)

    def scale(self, normed_NC: tf.Tensor) -> tf.Tensor:
        """Times gamma, plus beta."""
        return normed_NC * read(self.gamma, tf.float32) + read(self.beta, tf.float32)


class GroupNorm(LayerNorm):
    """Normalisation over time and groups of channels, as rows, with as many groups as the reference takes for a width."""

    def call(self, x_TBC: tf.Tensor) -> tf.Tensor:
        time, batch, width = measure(x_TBC)
        groups = choose_groups(width)
        normed = self.normalise(tf.reshape(x_TBC, [time, batch, groups, width // groups]), [0, 3])
        return tf.cast(self.scale(tf.reshape(normed, [-1, width])), x_TBC.dtype)


class RMSNorm(Part):
    """Vectors scaled to length sqrt(width), times gamma."""

    def __init__(self, width: int, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.gamma = self.add_variable("gamma", (width,), "ones", dtype="float32")

    def call(self, x_NC: tf.Tensor) -> tf.Tensor:
        x = tf.cast(x_NC, tf.float32)
        unit = tf.math.l2_normalize(x, -1, epsilon=1e-24)
        return tf.cast(unit * math.sqrt(x.shape[-1]) * self.gamma.value, x_NC.dtype)


def choose_groups(width: int) -> int:
    """Groups of a group norm: 8, 16 or 32 by width, halved until they divide it."""
    groups = 8 if width <= 16 else 16 if width <= 64 else 32
    while width % groups:
        groups //= 2
    return groups


def normalise(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """`x` with mean 0 and variance 1 over some axes, in float32, whose gradient is a third of the operations that TensorFlow would
    derive."""

    def average(x: tf.Tensor) -> tf.Tensor:
        # One axis after another, the last one first: at once, axes that do not lie side by side take a processor three times as long.
        for axis in reversed(axes):
            x = tf.reduce_mean(x, axis, keepdims=True)
        return x

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: tf.Tensor) -> Any:
        wide = tf.cast(x, tf.float32)
        centred = wide - average(wide)
        scale = tf.math.rsqrt(average(tf.square(centred)) + NORM_EPSILON)
        normed = centred * scale

        def differentiate(upstream: tf.Tensor) -> tf.Tensor:
            along = normed * average(upstream * normed)
            return tf.cast((upstream - average(upstream) - along) * scale, x.dtype)

        return normed, differentiate

    return run(x)


def normalise_at_once(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """The same as `normalise`: what a kernel for whole batches takes for the channels of a picture are our vectors."""
    rank = x.shape.rank
    inner = [axis % rank for axis in axes]
    order = [*(axis for axis in range(rank) if axis not in inner), *inner]
    turned = tf.cast(x, tf.float32) if order == sorted(order) else tf.transpose(tf.cast(x, tf.float32), order)
    sizes = measure(turned)
    rows = math.prod(sizes[: rank - len(inner)])
    normed = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(turned, [1, rows, math.prod(sizes[rank - len(inner) :]), 1]),
        scale=tf.ones([rows]),
        offset=tf.zeros([rows]),
        mean=[],
        variance=[],
        epsilon=NORM_EPSILON,
        data_format="NCHW",
    ).y
    normed = tf.reshape(normed, sizes)
    return normed if order == sorted(order) else tf.transpose(normed, np.argsort(order))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def scale_directions(directions_NO: tf.Tensor, lengths_O: tf.Tensor) -> Any:
    """Directions with these lengths over all axes but the last (weight norm), whose gradient is two thirds of the operations that
    TensorFlow would derive."""
    axes = list(range(directions_NO.shape.rank - 1))
    shrink_O = tf.math.rsqrt(tf.reduce_sum(tf.square(directions_NO), axes))
    factor_O = lengths_O * shrink_O

    def differentiate(upstream_NO: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        along_O = tf.reduce_sum(upstream_NO * directions_NO, axes) * shrink_O
        return upstream_NO * factor_O - directions_NO * (along_O * factor_O * shrink_O), along_O

    return directions_NO * factor_O, differentiate


@tf.custom_gradient  # type: ignore[untyped-decorator]
def gelu_tanh(x: tf.Tensor) -> Any:
    """GELU in its tanh approximation (`gelu_new`), written as x * sigmoid(2u).

    Keeps only its input for the backward pass: the composed form keeps five tensors of the widest layer.
    """
    slope, cubic = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        # float32, because the square overflows float16 from 256 on and would meet a zero.
        wide, upstream = tf.cast(x, tf.float32), tf.cast(upstream, tf.float32)
        square = cubic * tf.square(wide)
        opened = tf.sigmoid(wide * (slope + square))
        local = tf.raw_ops.SigmoidGrad(y=opened, dy=upstream * wide) * (slope + 3 * square)
        return tf.cast(upstream * opened + local, x.dtype)

    wide = tf.cast(x, tf.float32)
    return tf.cast(wide * tf.sigmoid(wide * (slope + cubic * tf.square(wide))), x.dtype), gradient


@tf.custom_gradient  # type: ignore[untyped-decorator]
def look_up(table_VC: tf.Tensor, ids_N: tf.Tensor) -> Any:
    """Rows of a table by id, with a dense gradient.

    The default gradient of a lookup has one row per use: its norm is not the gradient's norm, so clipping by it
    would be wrong, and adding micro-batches would concatenate.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        rows = tf.reshape(upstream, [-1, table_VC.shape[-1]])
        return tf.math.unsorted_segment_sum(rows, tf.reshape(ids_N, [-1]), table_VC.shape[0]), None

    return tf.gather(table_VC, ids_N), gradient


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
