"""The HiFi-GAN decoder: GPT latents and a speaker -> 24 kHz speech.

Shape suffixes: B batch, L latents (one per code), T time (of frames or samples), C channels, G speaker
channels, K kernel, I in, O out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.models.layers import Conv1D, Dense, Part, measure, read, scale_directions
from myxtts.models.sizes import FRAMES_PER_LATENT, RATE_CHANGE, DecoderSize
from myxtts.models.weights import Weight, list_decoder_weights


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


SLOPE = 0.1
LAST_SLOPE = 0.01


class WeightNormConv1D(Part):
    """A convolution over time stored as directions and lengths, as the checkpoints have it.

    Args:
        kernel: taps, an odd number unless upsampling.
        upsample: above 1, a transposed convolution that makes the sequence so many times longer.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, upsample: int = 1, dtype: Any = "float32"
    ):
        super().__init__(dtype=dtype)
        self.outputs, self.dilation, self.upsample = outputs, dilation, upsample
        # Lengths belong to the output channels, of a transposed convolution to the input channels: the last axis.
        shape = (kernel, inputs, outputs) if upsample == 1 else (kernel, outputs, inputs)
        self.directions = self.add_variable("directions", shape)
        self.lengths = self.add_variable("lengths", (shape[-1],))
        self.bias = self.add_variable("bias", (outputs,))

    def fuse(self) -> tf.Tensor:
        """The plain kernel. Cheap beside the convolution, which reuses each of its weights in every frame."""
        return scale_directions(tf.convert_to_tensor(self.directions.value), tf.convert_to_tensor(self.lengths.value))

    def call(self, x_BTI: tf.Tensor) -> tf.Tensor:
        kernel = tf.cast(self.fuse(), x_BTI.dtype)
        if self.upsample == 1:
            y_BTO = convolve(x_BTI, kernel, self.dilation)
        else:
            batch, time, _ = measure(x_BTI)
            shape = [batch, time * self.upsample, self.outputs]
            y_BTO = tf.nn.conv1d_transpose(x_BTI, kernel, shape, self.upsample, "SAME")
        return tf.nn.bias_add(y_BTO, read(self.bias, x_BTI.dtype))


class ResBlock(Part):
    """Pairs of a dilated and a plain convolution, each pair added to its input."""

    def __init__(self, width: int, kernel: int, dilations: tuple[int, ...], *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.dilated = [WeightNormConv1D(width, width, kernel, dilation=step, dtype=dtype) for step in dilations]
        self.plain = [WeightNormConv1D(width, width, kernel, dtype=dtype) for _ in dilations]

    def call(self, x_BTC: tf.Tensor) -> tf.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x_BTC += plain(tf.nn.leaky_relu(dilated(tf.nn.leaky_relu(x_BTC, SLOPE)), SLOPE))
        return x_BTC


class WaveformDecoder(Part):
    """GPT latents as speech, weight-compatible with `hifigan_decoder.waveform_decoder.*`.

    Args:
        size: widths; the upsampling stages are the published ones.
        dtype: dtype or policy to compute in.

    Example:
        >>> decoder = WaveformDecoder(DecoderSize(latent_width=1024, width=512))
        >>> decoder(latents_BLC, speaker_BG).shape  # latents (1, 100, 1024), speaker (1, 512)
        TensorShape([1, 111360])
    """

    def __init__(self, size: DecoderSize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.size = size
        stages = range(len(size.rates))
        self.conv_pre = Conv1D(size.latent_width, size.width, 7, dtype=dtype)
        self.speaker_in = Dense(size.speaker_width, size.width, dtype=dtype)
        self.ups = [
            WeightNormConv1D(
                size.channels(stage - 1),
                size.channels(stage),
                size.kernels[stage],
                upsample=size.rates[stage],
                dtype=dtype,
            )
            for stage in stages
        ]
        self.speaker_at = [Dense(size.speaker_width, size.channels(stage), dtype=dtype) for stage in stages]
        self.resblocks = [
            ResBlock(size.channels(stage), kernel, size.block_dilations, dtype=dtype)
            for stage in stages
            for kernel in size.block_kernels
        ]
        self.conv_post = Conv1D(size.channels(len(size.rates) - 1), 1, 7, use_bias=False, dtype=dtype)

    def list_weights(self) -> list[Weight]:
        """Its weights under the names they have below `hifigan_decoder.waveform_decoder.` in a checkpoint."""
        return list_decoder_weights(self.size)

    def call(self, latents_BLC: tf.Tensor, speaker_BG: tf.Tensor) -> tf.Tensor:
        """Speech (B, samples) in [-1, 1], float32; rows have equal lengths."""
        return self.decode_frames(stretch_latents(latents_BLC), speaker_BG)

    def decode_frames(self, frames_BTC: tf.Tensor, speaker_BG: tf.Tensor) -> tf.Tensor:
        """Speech (B, T * 256) of frames that `stretch_latents` made, or of any part of them."""
        speaker_B1G = tf.cast(speaker_BG, self.compute_dtype)[:, None]
        x = self.conv_pre(tf.cast(frames_BTC, self.compute_dtype)) + self.speaker_in(speaker_B1G)
        branches = len(self.size.block_kernels)
        for stage, (up, speaker_at) in enumerate(zip(self.ups, self.speaker_at, strict=True)):
            x = up(tf.nn.leaky_relu(x, SLOPE)) + speaker_at(speaker_B1G)
            blocks = self.resblocks[stage * branches : (stage + 1) * branches]
            x = average([block(own) for block, own in zip(blocks, hand_out(x, branches), strict=True)])
        return tf.tanh(tf.cast(self.conv_post(tf.nn.leaky_relu(x, LAST_SLOPE)), tf.float32))[..., 0]

    def forget_speakers(self) -> None:
        """Makes it hear no speaker. Trained with none from here on, it sounds alike whichever one it is given."""
        for part in (self.speaker_in, *self.speaker_at):
            part.kernel.assign(tf.zeros(part.kernel.shape))

    @property
    def hears_speakers(self) -> bool:
        """Whether it matters to it which speaker it is given."""
        return any(np.any(part.kernel.numpy()) for part in (self.speaker_in, *self.speaker_at))


def stretch_latents(latents_BLC: tf.Tensor) -> tf.Tensor:
    """The decoder's frames (B, T, C) of latents, one for 256 samples of speech."""
    return resample_linearly(resample_linearly(latents_BLC, FRAMES_PER_LATENT), RATE_CHANGE)


def change_speed(latents_BLC: tf.Tensor, speed: float) -> tf.Tensor:
    """Latents of speech `speed` times as fast."""
    return latents_BLC if speed == 1.0 else resample_linearly(latents_BLC, 1 / speed)


def resample_linearly(x_BTC: tf.Tensor, scale: float) -> tf.Tensor:
    """The sequence at `scale` times its rate, floor(T * scale) long, between the nearest two frames.

    Frames are half a frame in, and the scale is used as given: `tf.image.resize` takes the ratio of the rounded
    lengths instead, and drifts.
    """
    time = measure(x_BTC)[1]
    length = tf.cast(tf.floor(tf.cast(time, tf.float64) * scale), tf.int32)
    source_T = tf.maximum((tf.cast(tf.range(length), tf.float64) + 0.5) / scale - 0.5, 0.0)
    left_T = tf.minimum(tf.cast(source_T, tf.int32), time - 1)
    right_T = tf.minimum(left_T + 1, time - 1)
    share_T1 = tf.cast(source_T - tf.cast(left_T, tf.float64), x_BTC.dtype)[:, None]
    left, right = tf.gather(x_BTC, left_T, axis=1), tf.gather(x_BTC, right_T, axis=1)
    return left * (1 - share_T1) + right * share_T1


def count_settled(length: int, scale: float) -> int:
    """How many steps of a sequence at `scale` times its rate stay as they are when `length` steps grow more.

    The last steps lie behind the last one given, or between it and one that is not there yet.
    """
    return max(0, math.floor((length - 0.5) * scale - 0.5))
