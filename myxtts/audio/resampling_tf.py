"""Batched resampling on a device; the same kernels as `resampling`.

Shapes: B clips, S samples.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.audio.resampling import count_resampled, has_exact_kernel, make_kernel
from myxtts.audio.tiles import mark_positions, multiply_in_tiles, read_size


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
