"""The rivals of the waveform decoder: networks that learn to tell its speech from recordings, so that it learns to deceive
them. They are of use in training alone, and are never part of a model that speaks.

Some look at every second, third, fifth ... sample, where the pitch shows; some at spectrograms of several resolutions.
Each is a stack of two-dimensional convolutions. What every layer of a stack says of recordings and of speech is compared,
too.

Shape suffixes: B batch, S samples, T time, P samples side by side, F frequency bins, C channels, I in, O out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from myxtts.audio.filterbanks import MelSpec, make_filterbank
from myxtts.audio.on_device import multiply_in_tiles
from myxtts.models.layers import Part, read, scale_directions
from myxtts.models.sizes import SAMPLES_PER_FRAME, SPEECH_RATE_HZ, DecoderSize
from myxtts.models.weights import FreshWeight, Weight

SLOPE = 0.1
POWER_OFFSET = 1e-9
"""Keeps the gradient of a magnitude finite where there is silence."""

Kernel = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class RivalSize:
    """Sizes of the discriminators. At 32, for a decoder of width 512, they are about as wide as those of the HiFi-GAN paper."""

    width: int
    periods: tuple[int, ...] = (2, 3, 5, 7, 11)
    fft_samples: tuple[int, ...] = (512, 1024, 2048)


@dataclass(frozen=True)
class Layer:
    """One convolution of a stack."""

    inputs: int
    outputs: int
    kernel: Kernel
    strides: Kernel


def choose_rival_size(decoder: DecoderSize) -> RivalSize:
    """Rivals that are a match for a decoder: a strong one teaches a weak decoder nothing."""
    return RivalSize(width=max(2, decoder.width // 16))


def list_rival_weights(size: RivalSize) -> list[Weight]:
    """Their weights, under the names they have in a training checkpoint."""
    period, spectral = list_period_layers(size), list_spectral_layers(size)
    stacks = [
        *((f"by_period.{number}", period) for number in range(len(size.periods))),
        *((f"by_spectrum.{number}", spectral) for number in range(len(size.fft_samples))),
    ]
    return [
        weight
        for stack, layers in stacks
        for number, layer in enumerate(layers)
        for weight in _list_layer(f"{stack}.layers.{number}", layer)
    ]


def list_period_layers(size: RivalSize) -> list[Layer]:
    """The stack that looks at every n-th sample: over time only."""
    width = size.width
    channels = [1, width, 4 * width, 16 * width, 32 * width]
    strided = [Layer(inputs, outputs, (5, 1), (3, 1)) for inputs, outputs in itertools.pairwise(channels)]
    return [*strided, Layer(32 * width, 32 * width, (5, 1), (1, 1)), Layer(32 * width, 1, (3, 1), (1, 1))]


def list_spectral_layers(size: RivalSize) -> list[Layer]:
    """The stack that looks at a spectrogram: a little over time, far over frequency."""
    width = size.width
    return [
        Layer(1, width, (3, 9), (1, 1)),
        *[Layer(width, width, (3, 9), (1, 2))] * 3,
        Layer(width, width, (3, 3), (1, 1)),
        Layer(width, 1, (3, 3), (1, 1)),
    ]


class WeightNormConv2D(Part):
    """A convolution stored as directions and lengths."""

    def __init__(self, layer: Layer, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.strides = layer.strides
        self.directions = self.add_variable("directions", (*layer.kernel, layer.inputs, layer.outputs))
        self.lengths = self.add_variable("lengths", (layer.outputs,))
        self.bias = self.add_variable("bias", (layer.outputs,))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kernel = scale_directions(tf.convert_to_tensor(self.directions.value), tf.convert_to_tensor(self.lengths.value))
        kernel = tf.cast(kernel, x.dtype)
        return tf.nn.bias_add(tf.nn.conv2d(x, kernel, self.strides, "SAME"), read(self.bias, x.dtype))


class Discriminator(Part):
    """A stack of convolutions over one view of a waveform."""

    def __init__(self, layers: Sequence[Layer], *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.layers = [WeightNormConv2D(layer, dtype=dtype) for layer in layers]

    def call(self, view: tf.Tensor) -> list[tf.Tensor]:
        """What each layer says, float32. The last one's is the judgement: towards 1 for a recording, 0 for speech."""
        x, said = tf.cast(view, self.compute_dtype), []
        for layer in self.layers[:-1]:
            x = tf.nn.leaky_relu(layer(x), SLOPE)
            said.append(x)
        return [tf.cast(each, tf.float32) for each in (*said, self.layers[-1](x))]


class Rivals(Part):
    """All discriminators.

    Example:
        >>> judgements = Rivals(RivalSize(width=8))(wav_BS)
        >>> [said[-1].shape for said in judgements]  # one judgement for each place each of them looks at
    """

    def __init__(self, size: RivalSize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.size = size
        self.by_period = [Discriminator(list_period_layers(size), dtype=dtype) for _ in size.periods]
        self.by_spectrum = [Discriminator(list_spectral_layers(size), dtype=dtype) for _ in size.fft_samples]

    def list_weights(self) -> list[Weight]:
        """Their weights under the names they have in a training checkpoint."""
        return list_rival_weights(self.size)

    def call(self, wav_BS: tf.Tensor) -> list[list[tf.Tensor]]:
        """What each layer of each discriminator says of waveforms of one known length."""
        folded = [fold(wav_BS, period) for period in self.size.periods]
        spectra = [compute_magnitudes(wav_BS, samples)[..., None] for samples in self.size.fft_samples]
        views = zip((*self.by_period, *self.by_spectrum), (*folded, *spectra), strict=True)
        return [discriminator(view) for discriminator, view in views]


def fold(wav_BS: tf.Tensor, period: int) -> tf.Tensor:
    """(B, T, P, 1): a waveform in lines of `period` samples, its end mirrored to fill the last one."""
    samples = wav_BS.shape[1]
    filled = tf.pad(wav_BS, [[0, 0], [0, -samples % period]], mode="REFLECT")
    return tf.reshape(filled, [-1, filled.shape[1] // period, period, 1])


def compute_magnitudes(wav_BS: tf.Tensor, fft_samples: int) -> tf.Tensor:
    """(B, T, F): magnitudes under Hann windows that lie wholly inside the waveform, a quarter of one apart."""
    frames = cut_frames(wav_BS, fft_samples, fft_samples // 4)
    spectrum = tf.signal.rfft(frames * tf.signal.hann_window(fft_samples))
    return tf.sqrt(tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum)) + POWER_OFFSET)


def cut_frames(wav_BS: tf.Tensor, window: int, hop: int) -> tf.Tensor:
    """(B, T, window): overlapping pieces, made of whole hops.

    Laid side by side: the gradient of gathering them would be a sum in no fixed order.
    """
    hops = wav_BS.shape[1] // hop
    grid = tf.reshape(wav_BS[:, : hops * hop], [-1, hops, hop])
    per_window = window // hop
    count = hops - per_window + 1
    return tf.concat([grid[:, first : first + count] for first in range(per_window)], -1)


def _list_layer(path: str, layer: Layer) -> Iterator[Weight]:
    shape = (*layer.kernel, layer.inputs, layer.outputs)
    start = FreshWeight("uniform", 1 / math.sqrt(math.prod(shape[:-1])))
    own_layout = (0, 1, 2, 3)
    yield Weight(f"{path}.directions", shape, f"{path}.directions", start, own_layout, decays=True)
    norm = FreshWeight("norm", source=f"{path}.directions")
    yield Weight(f"{path}.lengths", (layer.outputs,), f"{path}.lengths", norm, decays=True)
    yield Weight(f"{path}.bias", (layer.outputs,), f"{path}.bias", start)


SPEECH_MEL = MelSpec(
    rate_hz=SPEECH_RATE_HZ,
    fft_samples=4 * SAMPLES_PER_FRAME,
    window_samples=4 * SAMPLES_PER_FRAME,
    hop_samples=SAMPLES_PER_FRAME,
    window="hann",
    bands=80,
    top_hz=SPEECH_RATE_HZ / 2,
    unit_area=True,
)
MAGNITUDE_FLOOR = 1e-5

MEL_WEIGHT = 45.0
FEATURE_WEIGHT = 2.0

Said = Sequence[Sequence[tf.Tensor]]
"""What each layer of each discriminator says, as `Rivals` gives it."""


def compute_speech_mel(wav_BS: tf.Tensor) -> tf.Tensor:
    """Log-mel magnitudes (B, T, M) of speech at 24 kHz, of whole windows inside it; they have a gradient."""
    magnitudes = compute_magnitudes(wav_BS, SPEECH_MEL.fft_samples)
    # In tiles: as a plain product it was the one figure whose last bits differed between two runs of the same step.
    return tf.math.log(tf.maximum(multiply_in_tiles(magnitudes, make_filterbank(SPEECH_MEL)), MAGNITUDE_FLOOR))


def measure_mel_distance(real_BS: tf.Tensor, speech_BS: tf.Tensor) -> tf.Tensor:
    """(B,): mean distance of the log mels."""
    return tf.reduce_mean(tf.abs(compute_speech_mel(real_BS) - compute_speech_mel(speech_BS)), [1, 2])


def measure_deception(of_speech: Said) -> tf.Tensor:
    """(B,): how far the rivals are from taking speech for a recording. The decoder makes it small."""
    return tf.add_n([_mean_by_row(tf.square(said[-1] - 1.0)) for said in of_speech])


def measure_discernment(of_real: Said, of_speech: Said) -> tf.Tensor:
    """(B,): how far the rivals are from telling recordings and speech apart. They make it small."""
    return tf.add_n(
        [
            _mean_by_row(tf.square(real[-1] - 1.0)) + _mean_by_row(tf.square(speech[-1]))
            for real, speech in zip(of_real, of_speech, strict=True)
        ]
    )


def measure_feature_distance(of_real: Said, of_speech: Said) -> tf.Tensor:
    """(B,): how differently the rivals' inner layers see recordings and speech."""
    return tf.add_n(
        [
            _mean_by_row(tf.abs(real - speech))
            for each in zip(of_real, of_speech, strict=True)
            for real, speech in zip(each[0][:-1], each[1][:-1], strict=True)
        ]
    )


def _mean_by_row(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(values, list(range(1, values.shape.rank)))
