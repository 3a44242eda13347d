"""What is done to waves on a device: resampling, augmentation, cutting of prompts, sums that do not depend on the batch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.augment import SPEED_STEPS, AugmentDraws, AugmentSettings
from myxtts.audio.resampling import count_resampled, has_exact_kernel, make_kernel
from myxtts.units import MAX_SLICE_SAMPLES, SAMPLES_PER_CODE

TILE_ROWS = 64


def multiply_in_tiles(x_BTK: Any, matrix_KN: NDArray[np.float32]) -> Any:
    """`x @ matrix` (B, T, N), each row a function of that row and its place in T alone."""
    inputs, outputs = matrix_KN.shape
    batch, rows = read_size(x_BTK, 0), read_size(x_BTK, 1)
    padded = tf.pad(x_BTK, [[0, 0], [0, -rows % TILE_ROWS], [0, 0]])
    tiles = tf.reshape(padded, (-1, TILE_ROWS, inputs))
    product = tf.matmul(tiles, matrix_KN[None])
    return tf.reshape(product, (batch, -1, outputs))[:, :rows]


def read_size(tensor: Any, axis: int) -> Any:
    """The size of an axis: a number where tracing knows it, else a scalar tensor."""
    size = tensor.shape[axis]
    return tf.shape(tensor)[axis] if size is None else size


def mark_positions(lengths_B: Any, size: Any) -> Any:
    """(B, size) booleans: true at positions before each length."""
    return tf.range(size)[None, :] < tf.cast(lengths_B, tf.int32)[:, None]


SPEED_TAPS = 16
SPEED_PHASES = 1 << 12
"""Places between two samples that the interpolation tells apart; finer ones would change less than -70 dB."""


def augment_wav(wav_BS: Any, lengths_B: Any, settings: AugmentSettings, draws: AugmentDraws) -> tuple[Any, Any]:
    """Clips and their lengths after speed, gain and noise, in this order, in [-1, 1]; zero past each clip's end.

    With changes of speed the buffer grows to hold the slowest clip.
    """
    if settings.speed_change:
        stretched = math.ceil(read_size(wav_BS, 1) * settings.longest_stretch)
        samples = -(-stretched // SAMPLES_PER_CODE) * SAMPLES_PER_CODE
        wav_BS, lengths_B = change_speed(wav_BS, lengths_B, draws.speed_steps, samples, 1 + settings.speed_change)
    if settings.gain_db:
        wav_BS = tf.clip_by_value(wav_BS * draws.gains[:, None], -1.0, 1.0)
    if settings.noise_db is not None:
        wav_BS = add_noise(wav_BS, lengths_B, draws.noise_levels, draws.noise_keys)
    return wav_BS, lengths_B


def change_speed(wav_BS: Any, lengths_B: Any, speed_steps_B: Any, samples: int, fastest: float) -> tuple[Any, Any]:
    """Clips played `speed_steps / SPEED_STEPS` times as fast, in a buffer of `samples`, and their new lengths.

    Pitch changes with speed. What the fastest speed allowed would fold back is filtered out of every clip.
    """
    steps = tf.cast(speed_steps_B, tf.int64)[:, None]
    old_lengths = tf.cast(lengths_B, tf.int64)[:, None]
    lengths = tf.cast((old_lengths * SPEED_STEPS + steps - 1) // steps, tf.int32)[:, 0]
    # Whole numbers: in float32 a position ten seconds into a clip is off by a hundredth of a sample.
    positions = tf.range(samples, dtype=tf.int64)[None, :] * steps
    before = tf.cast(positions // SPEED_STEPS, tf.int32)
    phases = tf.cast(positions % SPEED_STEPS, tf.int32) // (SPEED_STEPS // SPEED_PHASES)
    half, old_samples = SPEED_TAPS // 2, read_size(wav_BS, 1)
    wav = tf.where(mark_positions(lengths_B, old_samples), wav_BS, 0.0)
    padded = tf.pad(wav, [[0, 0], [half, SPEED_TAPS + 1]])
    before = tf.minimum(before, old_samples + half)
    taps = _make_speed_taps(fastest)
    # Tap by tap: all at once would need SPEED_TAPS copies of the batch, and a sum whose order depends on its shape.
    output = tf.zeros_like(phases, tf.float32)
    for tap in range(SPEED_TAPS):
        output += tf.gather(taps[:, tap], phases) * tf.gather(padded, before + tap + 1, batch_dims=1)
    return tf.where(mark_positions(lengths, samples), output, 0.0), lengths


@lru_cache(maxsize=8)
def _make_speed_taps(fastest: float) -> NDArray[np.float32]:
    """Taps (phases, taps) of a windowed sinc that lets pass what `fastest` leaves room for."""
    half = SPEED_TAPS // 2
    distance = np.arange(1 - half, half + 1)[None, :] - np.arange(SPEED_PHASES)[:, None] / SPEED_PHASES
    cutoff = 0.95 / fastest
    window = np.cos(np.pi * distance / SPEED_TAPS) ** 2
    taps = cutoff * np.sinc(cutoff * distance) * window
    normalised: NDArray[np.float32] = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return normalised


def add_noise(wav_BS: Any, lengths_B: Any, levels_B: Any, keys_B: Any) -> Any:
    """Clips with white noise of standard deviation `levels`, in [-1, 1]; padding stays as it is."""
    samples = read_size(wav_BS, 1)
    noise = make_noise(keys_B, samples) * tf.cast(levels_B, tf.float32)[:, None]
    noisy = tf.clip_by_value(wav_BS + noise, -1.0, 1.0)
    return tf.where(mark_positions(lengths_B, samples), noisy, wav_BS)


def make_noise(keys_B: Any, samples: Any) -> Any:
    """(B, samples) white noise of variance 1: sample s of a row is a hash of the row's key and s.

    TensorFlow's own stateless generators take one seed per tensor, so a row would depend on its place in the batch.
    """
    counters = tf.cast(tf.range(samples), tf.uint32)[None, :] * tf.constant(0x9E3779B9, tf.uint32)
    words = _mix32(counters + _mix32(tf.cast(keys_B, tf.uint32)[:, None]))
    low = tf.cast(tf.bitwise.bitwise_and(words, tf.constant(0xFFFF, tf.uint32)), tf.float32)
    high = tf.cast(tf.bitwise.right_shift(words, tf.constant(16, tf.uint32)), tf.float32)
    # The sum of two numbers evenly spread over 0..65535.
    return (low + high - 65535.0) * (math.sqrt(6.0) / 65536.0)


def _mix32(words: Any) -> Any:
    """A one-to-one scramble of 32-bit words: shifts and odd factors in turn."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, tf.constant(shift, tf.uint32)))
        if factor is not None:
            words = words * tf.constant(factor, tf.uint32)
    return words


def mask_mel(mel_BTM: Any, frames_B: Any, settings: AugmentSettings, draws: AugmentDraws, silence_M: Any) -> Any:
    """Mels with stretches of frames and groups of bands set to `silence`; frames past a clip's own stay as they are."""
    if not (settings.frame_masks or settings.band_masks):
        return mel_BTM
    batch, frames, bands = (read_size(mel_BTM, axis) for axis in range(3))
    hidden = tf.zeros((1, 1, 1), tf.bool)
    for mask in range(settings.frame_masks):
        covered = _cover(draws.frame_mask_starts[:, mask], draws.frame_mask_sizes[:, mask], frames_B, frames)
        hidden |= covered[:, :, None]
    for mask in range(settings.band_masks):
        sizes = tf.fill([batch], bands)
        hidden |= _cover(draws.band_mask_starts[:, mask], draws.band_mask_sizes[:, mask], sizes, bands)[:, None, :]
    own = mark_positions(frames_B, frames)[:, :, None]
    return tf.where(tf.logical_and(hidden, own), silence_M, mel_BTM)


def _cover(starts_B: Any, sizes_B: Any, totals_B: Any, positions: Any) -> Any:
    """(B, positions) booleans: true inside each mask."""
    sizes = tf.minimum(tf.cast(sizes_B, tf.int32), totals_B)
    first = tf.cast(tf.cast(starts_B, tf.float32) * tf.cast(totals_B - sizes + 1, tf.float32), tf.int32)[:, None]
    place = tf.range(positions)[None, :]
    return tf.logical_and(place >= first, place < first + sizes[:, None])


def resample_batch(wav_BS: Any, lengths_B: Any, from_hz: int, to_hz: int) -> tuple[Any, Any]:
    """Clips and their lengths at another rate, zero past each clip's end.

    Row by row and bit by bit a function of the clip alone. Only for rates with an exact kernel.
    """
    assert has_exact_kernel(from_hz, to_hz), f"{from_hz} Hz to {to_hz} Hz has no exact kernel: resample on the host"
    lengths = tf.cast(lengths_B, tf.int64)
    new_lengths = tf.cast(-(-lengths * to_hz // from_hz), tf.int32)
    if from_hz == to_hz:
        return wav_BS, new_lengths
    kernel = make_kernel(from_hz, to_hz)
    batch, samples = read_size(wav_BS, 0), read_size(wav_BS, 1)
    wav = tf.where(mark_positions(lengths_B, samples), wav_BS, 0.0)
    # One block more than there are samples for: the last one's right context.
    blocks = -(-samples // kernel.block_inputs)
    padding = (blocks + 2) * kernel.block_inputs - kernel.margin - samples
    grid = tf.reshape(tf.pad(wav, [[0, 0], [kernel.margin, padding]]), (batch, -1, kernel.block_inputs))
    heard = tf.concat([grid[:, :-1], grid[:, 1:, : kernel.reach - kernel.block_inputs]], axis=-1)[:, :blocks]
    bands = [
        multiply_in_tiles(heard[..., band.offset : band.offset + len(band.taps)], band.taps) for band in kernel.bands
    ]
    new_samples = count_resampled(samples, from_hz, to_hz)
    output = tf.reshape(tf.concat(bands, axis=-1), (batch, -1))[:, :new_samples]
    return tf.where(mark_positions(new_lengths, new_samples), output, 0.0), new_lengths


def cut_slices(wav_BS: Any, starts_B: Any, lengths_B: Any, samples: int = MAX_SLICE_SAMPLES) -> Any:
    """(B, samples): each row's slice, with zeros behind it. A slice must lie inside its clip and be at most `samples` long."""
    positions = tf.cast(starts_B, tf.int32)[:, None] + tf.range(samples)[None, :]
    inside = tf.minimum(positions, read_size(wav_BS, 1) - 1)
    return tf.where(mark_positions(lengths_B, samples), tf.gather(wav_BS, inside, batch_dims=1), 0.0)
