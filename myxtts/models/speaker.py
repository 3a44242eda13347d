"""The speaker encoder: mel of a voice -> one unit vector. Imported, never trained here.

Shape suffixes: B batch, F mel channels (the height of the picture), T time, C channels, N = C x F pooled channels.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.models.layers import NORM_EPSILON, Dense, Part, measure, read
from myxtts.models.sizes import SpeakerSize
from myxtts.models.weights import Weight, list_speaker_weights

VARIANCE_FLOOR = 1e-5


class Conv2D(Part):
    """A convolution over mel and time with torch's symmetric padding."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, use_bias: bool = False, dtype: Any = "float32"
    ):
        super().__init__(dtype=dtype)
        self.stride, self.side = stride, (kernel - 1) // 2
        self.kernel = self.add_variable("kernel", (kernel, kernel, inputs, outputs), trainable=False)
        self.bias = self.add_variable("bias", (outputs,), trainable=False) if use_bias else None

    def call(self, x_BFTC: tf.Tensor) -> tf.Tensor:
        sides = [self.side, self.side]
        padded = tf.pad(x_BFTC, [[0, 0], sides, sides, [0, 0]])
        y = tf.nn.conv2d(padded, read(self.kernel, x_BFTC.dtype), self.stride, "VALID")
        return y if self.bias is None else tf.nn.bias_add(y, read(self.bias, x_BFTC.dtype))


class FrozenBatchNorm(Part):
    """Batch norm by its stored statistics."""

    def __init__(self, width: int, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.gamma = self.add_variable("gamma", (width,), "ones", trainable=False)
        self.beta = self.add_variable("beta", (width,), trainable=False)
        self.mean = self.add_variable("mean", (width,), trainable=False)
        self.variance = self.add_variable("variance", (width,), "ones", trainable=False)
        # Read by nobody, but an exported file must have it.
        self.batches = self.add_variable("batches", (), dtype="int64", trainable=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        scale = self.gamma.value * tf.math.rsqrt(self.variance.value + NORM_EPSILON)
        shift = self.beta.value - self.mean.value * scale
        return x * tf.cast(scale, x.dtype) + tf.cast(shift, x.dtype)


class SpeakerBlock(Part):
    """A residual block whose channels are weighted by what the whole picture shows (squeeze and excitation)."""

    def __init__(self, size: SpeakerSize, inputs: int, outputs: int, *, stride: int, shortcut: bool, dtype: Any):
        super().__init__(dtype=dtype)
        self.conv_in = Conv2D(inputs, outputs, 3, stride=stride, dtype=dtype)
        self.norm_in = FrozenBatchNorm(outputs, dtype=dtype)
        self.conv_out = Conv2D(outputs, outputs, 3, dtype=dtype)
        self.norm_out = FrozenBatchNorm(outputs, dtype=dtype)
        self.squeeze = Dense(outputs, outputs // size.squeeze, dtype=dtype)
        self.excite = Dense(outputs // size.squeeze, outputs, dtype=dtype)
        self.shortcut = Conv2D(inputs, outputs, 1, stride=stride, dtype=dtype) if shortcut else None
        self.shortcut_norm = FrozenBatchNorm(outputs, dtype=dtype) if shortcut else None

    def call(self, x_BFTC: tf.Tensor) -> tf.Tensor:
        y = self.norm_out(self.conv_out(self.norm_in(tf.nn.relu(self.conv_in(x_BFTC)))))
        gate_BC = tf.sigmoid(self.excite(tf.nn.relu(self.squeeze(tf.reduce_mean(y, [1, 2])))))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x_BFTC = self.shortcut_norm(self.shortcut(x_BFTC))
        return tf.nn.relu(y * gate_BC[:, None, None] + x_BFTC)


class FrontEndConstants(Part):
    """Buffers of the reference's mel front end. Ours is in `myxtts.audio`; these make an exported file complete."""

    def __init__(self, size: SpeakerSize):
        super().__init__()
        self.emphasis = self.add_variable("emphasis", (1, 1, 2), trainable=False)
        self.window = self.add_variable("window", (size.window_samples,), trainable=False)
        self.filterbank = self.add_variable("filterbank", (size.fft_bins, size.mel_channels), trainable=False)


class SpeakerEncoder(Part):
    """Who speaks, as a vector of length 1; weight-compatible with `hifigan_decoder.speaker_encoder.*`.

    Pooling is float32, whatever it computes in.

    Example:
        >>> encoder = SpeakerEncoder(SpeakerSize())
        >>> encoder(mel_BTF).shape  # (1, 600, 64), from `compute_speaker_mel`
        TensorShape([1, 512])
    """

    def __init__(self, size: SpeakerSize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.size = size
        self.conv = Conv2D(1, size.filters[0], 3, use_bias=True, dtype=dtype)
        self.norm = FrozenBatchNorm(size.filters[0], dtype=dtype)
        self.stages = [self._make_stage(stage, dtype) for stage in range(len(size.filters))]
        self.attention_in = Dense(size.pooled_width, size.attention_width, dtype=dtype)
        self.attention_norm = FrozenBatchNorm(size.attention_width, dtype=dtype)
        self.attention_out = Dense(size.attention_width, size.pooled_width, dtype=dtype)
        self.project = Dense(2 * size.pooled_width, size.width, dtype=dtype)
        self.front_end = FrontEndConstants(size)
        self.trainable = False

    def _make_stage(self, stage: int, dtype: Any) -> list[SpeakerBlock]:
        outputs = self.size.filters[stage]
        blocks = []
        for block in range(self.size.blocks[stage]):
            narrows = stage > 0 and block == 0
            inputs = self.size.filters[stage - 1] if narrows else outputs
            stride = 2 if narrows else 1
            blocks.append(SpeakerBlock(self.size, inputs, outputs, stride=stride, shortcut=narrows, dtype=dtype))
        return blocks

    def list_weights(self) -> list[Weight]:
        """Its weights under the names they have below `hifigan_decoder.speaker_encoder.` in a checkpoint."""
        return list_speaker_weights(self.size)

    def call(self, mel_BTF: tf.Tensor) -> tf.Tensor:
        """The speaker (B, G) of a speaker mel, whose channels are normalised over time. Rows have equal lengths."""
        x_BFTC = tf.transpose(tf.cast(mel_BTF, self.compute_dtype), [0, 2, 1])[..., None]
        x = self.norm(tf.nn.relu(self.conv(x_BFTC)))
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return tf.math.l2_normalize(self.project(tf.cast(self._pool(x), self.compute_dtype)), -1, epsilon=1e-24)

    def _pool(self, x_BFTC: tf.Tensor) -> tf.Tensor:
        batch, height, time, channels = measure(x_BFTC)
        # Channel-major: the checkpoint counts all mel rows of the first channel, then of the second.
        x_BTN = tf.reshape(tf.transpose(x_BFTC, [0, 2, 3, 1]), [batch, time, channels * height])
        scores_BTN = self.attention_out(self.attention_norm(tf.nn.relu(self.attention_in(x_BTN))))
        weights_BTN = tf.nn.softmax(tf.cast(scores_BTN, tf.float32), 1)
        x_BTN = tf.cast(x_BTN, tf.float32)
        mean_BN = tf.reduce_sum(weights_BTN * x_BTN, 1)
        spread_BN = tf.reduce_sum(weights_BTN * tf.square(x_BTN), 1) - tf.square(mean_BN)
        return tf.concat([mean_BN, tf.sqrt(tf.maximum(spread_BN, VARIANCE_FLOOR))], -1)
