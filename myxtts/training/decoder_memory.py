"""How much memory training the waveform decoder takes, counted from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from myxtts.models.discriminators import (
    Layer,
    RivalSize,
    choose_rival_size,
    list_period_layers,
    list_rival_weights,
    list_spectral_layers,
)
from myxtts.models.sizes import DecoderSize
from myxtts.models.speech_units import SEGMENT_FRAMES, SEGMENT_SAMPLES
from myxtts.models.weights import list_decoder_weights

KEPT_PER_CONVOLUTION = 2
"""Of a convolution in the decoder: its input after the activation, and its output."""
KEPT_PER_RIVAL_LAYER = 3
"""Of a layer of a rival: its output before and after the activation, and the copy that is compared."""
SIDES = 2
"""Rivals look at a recording and at speech."""


def count_decoder_parameters(size: DecoderSize) -> int:
    """Numbers that are trained: the decoder's and its rivals'."""
    rivals = list_rival_weights(choose_rival_size(size))
    return sum(weight.elements for weight in (*list_decoder_weights(size), *rivals))


def count_decoder_numbers(size: DecoderSize) -> int:
    """Numbers that a step keeps for each clip."""
    return _count_own(size) + SIDES * KEPT_PER_RIVAL_LAYER * _count_rivals(choose_rival_size(size))


def _count_own(size: DecoderSize) -> int:
    convolutions = 2 * len(size.block_dilations) * len(size.block_kernels)
    time, kept = SEGMENT_FRAMES, SEGMENT_FRAMES * (size.latent_width + 2 * size.width)
    for stage, rate in enumerate(size.rates):
        time *= rate
        kept += time * size.channels(stage) * (KEPT_PER_CONVOLUTION * convolutions + 3)
    return kept


def _count_rivals(size: RivalSize) -> int:
    by_period = _count_outputs(list_period_layers(size), SEGMENT_SAMPLES)
    # Windows a quarter of their length apart have half as many bins as samples: two numbers for each sample.
    by_spectrum = _count_outputs(list_spectral_layers(size), 2 * SEGMENT_SAMPLES)
    return len(size.periods) * by_period + len(size.fft_samples) * by_spectrum


def _count_outputs(layers: Sequence[Layer], positions: int) -> int:
    total = 0
    for layer in layers:
        positions = math.ceil(positions / math.prod(layer.strides))
        total += positions * layer.outputs
    return total
