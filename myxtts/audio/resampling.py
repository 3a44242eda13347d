"""Other sample rates, as the XTTS reference computes them: a sinc lowpass under a Hann window.

Reduced to lowest terms, `from_hz` to `to_hz` is `down` to `up`: every `down` input samples give `up` output samples, each with its
own filter taps. A block of such periods is a matrix product; most of the matrix is zero, so it is kept as bands: groups of
neighbouring outputs and the inputs they can hear. Only ratios such as 22051 to 22050, for which the reference would need
gigabytes, are left to soxr."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import soxr
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

ZERO_CROSSINGS = 6
ROLLOFF = 0.99

BAND_OUTPUTS = 48
"""Wide enough for the matrix product to be efficient, narrow enough to leave most zeros out."""

TILE_PRODUCTS = 1 << 18
"""Multiplications in one matrix product. OpenBLAS shares larger ones out among threads, and then the last bits of a clip
depend on how many there are: a reader process with one thread and the trainer with many would hear different clips.
Threads that wait for a busy core also made such a product up to forty times slower."""

MAX_KERNEL_NUMBERS = 1 << 23
"""Largest kernel, counted as the reference holds it, that is worth being exact for."""


@dataclass(frozen=True)
class Band:
    """Neighbouring outputs of a block, and the taps over the inputs they can hear."""

    offset: int
    """First input sample, counted from `SincKernel.margin` samples before the block."""
    taps: NDArray[np.float32]
    """(inputs, outputs)."""


@dataclass(frozen=True)
class SincKernel:
    """How blocks of `block_inputs` samples become blocks of `block_outputs`."""

    margin: int
    """Samples a tap may reach back before its block."""
    block_inputs: int
    block_outputs: int
    bands: tuple[Band, ...]

    @property
    def tile_blocks(self) -> int:
        """Blocks that are multiplied at a time."""
        return max(1, TILE_PRODUCTS // max(band.taps.size for band in self.bands))

    @property
    def reach(self) -> int:
        """Samples one block hears, from `margin` before its start. Never more than two blocks' worth."""
        return max(band.offset + len(band.taps) for band in self.bands)


def count_resampled(samples: int, from_hz: int, to_hz: int) -> int:
    """How many samples `resample_clip` makes of `samples` samples, which may be a tensor."""
    # In lowest terms: 22050 Hz times three seconds of samples is more than an int32 tensor holds.
    common = math.gcd(from_hz, to_hz)
    return -(-samples * (to_hz // common) // (from_hz // common))


def resample_clip(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """A clip (samples,) at another rate; the clip itself when the rates are equal."""
    if from_hz == to_hz:
        return samples
    length = count_resampled(len(samples), from_hz, to_hz)
    if not has_exact_kernel(from_hz, to_hz):
        # soxr rounds the length where the reference rounds it up: one zero more, at most.
        resampled = soxr.resample(samples, from_hz, to_hz, quality="HQ")[:length]
        return np.pad(resampled, (0, length - len(resampled)))
    kernel = make_kernel(from_hz, to_hz)
    rows = kernel.tile_blocks
    tiles = -(-len(samples) // (rows * kernel.block_inputs))
    padded = np.zeros(tiles * rows * kernel.block_inputs + kernel.reach, np.float32)
    padded[kernel.margin : kernel.margin + len(samples)] = samples
    output = np.empty((tiles, rows, kernel.block_outputs), np.float32)
    strides = (rows * kernel.block_inputs * 4, kernel.block_inputs * 4, 4)
    start = 0
    for band in kernel.bands:
        inputs, outputs = band.taps.shape
        # Views, not copies: a block is never shorter than a band's inputs, so BLAS takes them as they are.
        heard = as_strided(padded[band.offset :], (tiles, rows, inputs), strides, writeable=False)
        np.matmul(heard, band.taps, out=output[:, :, start : start + outputs])
        start += outputs
    return output.reshape(-1)[:length]


def stream_resampled(from_hz: int, to_hz: int) -> Callable[[NDArray[np.float32], bool], NDArray[np.float32]]:
    """A function that takes a sound block by block, and whether a block is the last, and gives it at another rate, by soxr."""
    if from_hz == to_hz:
        return lambda block, _: block
    stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")
    return lambda block, is_last: stream.resample_chunk(block, last=is_last)


def has_exact_kernel(from_hz: int, to_hz: int) -> bool:
    """Whether a ratio is simple enough for the reference's kernel."""
    down, up = _reduce(from_hz, to_hz)
    return up * (2 * _reach_of_tap(down, up) + down) <= MAX_KERNEL_NUMBERS


@lru_cache(maxsize=32)
def make_kernel(from_hz: int, to_hz: int) -> SincKernel:
    down, up = _reduce(from_hz, to_hz)
    margin = _reach_of_tap(down, up)
    widest = math.ceil(BAND_OUTPUTS * down / up) + 2 * margin + 2
    periods = max(-(-2 * BAND_OUTPUTS // up), -(-widest // down))
    outputs = np.arange(periods * up)
    groups = np.array_split(outputs, -(-len(outputs) // BAND_OUTPUTS))
    bands = tuple(_make_band(group, down, up, margin) for group in groups)
    return SincKernel(margin, periods * down, periods * up, bands)


def _reduce(from_hz: int, to_hz: int) -> tuple[int, int]:
    divisor = math.gcd(from_hz, to_hz)
    return from_hz // divisor, to_hz // divisor


def _reach_of_tap(down: int, up: int) -> int:
    return math.ceil(ZERO_CROSSINGS * down / (ROLLOFF * min(down, up)))


def _make_band(outputs: NDArray[np.int64], down: int, up: int, margin: int) -> Band:
    first = int(outputs[0]) * down // up - margin
    last = -(-int(outputs[-1]) * down // up) + margin
    inputs = np.arange(first, last + 1)
    # Each output belongs to a period of its own; the reference knows positions inside one period only.
    period, phase = np.divmod(outputs, up)
    distance = inputs[:, None] - period * down
    return Band(first + margin, _compute_taps(distance, phase, down, up))


def _compute_taps(distance: NDArray[np.int64], phase: NDArray[np.int64], down: int, up: int) -> NDArray[np.float32]:
    # In float32 from the start, like the reference: doubles would be more precise, and 5e-6 away from it.
    cutoff = np.float32(ROLLOFF * min(down, up))
    position = -phase.astype(np.float32) / np.float32(up) + distance.astype(np.float32) / np.float32(down)
    position = np.clip(position * cutoff, -ZERO_CROSSINGS, ZERO_CROSSINGS)
    window = np.square(np.cos(position * np.float32(math.pi) / np.float32(2 * ZERO_CROSSINGS)))
    angle = position * np.float32(math.pi)
    sinc = np.where(angle == 0, np.float32(1), np.sin(angle) / np.where(angle == 0, np.float32(1), angle))
    return np.ascontiguousarray(sinc * window * np.float32(cutoff / np.float32(down)))
