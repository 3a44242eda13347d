"""The three mel spectrograms of XTTS, batched, on the device they are called on.

Each row is a function of its clip alone, to the last bit on a CPU: the Fourier transform works frame by frame, and the mel projection
goes through `multiply_in_tiles`. `mel_norms` are the checkpoint's, one positive number per band.

Shapes: B clips, S samples, T frames, M mel bands. Frame t is centred on sample t * hop; a clip of n samples has 1 + n // hop frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.filterbanks import (
    CONDITIONING_MEL,
    DVAE_MEL,
    PREEMPHASIS,
    SPEAKER_MEL,
    MelSpec,
    make_filterbank,
    make_window,
)
from myxtts.audio.on_device import mark_positions, multiply_in_tiles, read_size
from myxtts.units import FRAMES_PER_CODE, SAMPLES_PER_CODE

TAIL_CODES = 8
TAIL_SAMPLES = TAIL_CODES * SAMPLES_PER_CODE  # 8192
"""Silence behind every clip: its last code hears the six codes behind it, and the edge of the buffer is further away."""

POWER_FLOOR = 1e-5
SPEAKER_POWER_OFFSET = 1e-6
VARIANCE_OFFSET = 1e-5

GROUP_NUMBERS = 1 << 21
"""Rows are transformed in groups of about this many numbers on a CPU. Tensors above 32 MB come as fresh pages from the system on
every step, which costs it more than the transform itself. A GPU is faster with all `at_once`: it is asked for fewer kernels."""

# Sums over time are taken in whole numbers of this size: unlike floats, they add up the same in any order.
_FIXED_POINT = 2.0**32


def compute_conditioning_mel(wav_BS: Any, lengths_B: Any, mel_norms_M: NDArray[np.float32]) -> tuple[Any, Any]:
    """Conditioning mels (B, T, M) and their frames (B,). Frames past a clip's own are those of silence.

    A clip ends in a mirror image of itself, as the reference has it for a clip that stands alone.
    """
    spec = CONDITIONING_MEL
    padded = _mirror_ends(_clear_padding(wav_BS, lengths_B), lengths_B, spec)
    mel = _take_log(_compute_power_mel(padded, spec, spec.count_frames(read_size(wav_BS, 1))), mel_norms_M)
    frames = _count_frames(lengths_B, spec)
    return tf.where(mark_positions(frames, read_size(mel, 1))[..., None], mel, make_silent_frame(mel_norms_M)), frames


def compute_slice_mel(
    slices_BS: Any, mel_norms_M: NDArray[np.float32], spec: MelSpec = CONDITIONING_MEL, *, at_once: bool = False
) -> Any:
    """Conditioning mels (B, T, M) of slices in buffers of one length, for training.

    The zeros behind a shorter slice are part of it: the reference lets the encoder hear them.
    """
    half = spec.window_samples // 2
    padded = tf.pad(slices_BS, [[0, 0], [half, half]], mode="REFLECT")
    frames = spec.count_frames(read_size(slices_BS, 1))
    return _take_log(_compute_power_mel(padded, spec, frames, at_once=at_once), mel_norms_M)


def compute_dvae_mel(
    wav_BS: Any, lengths_B: Any, mel_norms_M: NDArray[np.float32], *, at_once: bool = False
) -> tuple[Any, Any]:
    """The mels (B, T, M) that the DVAE turns into codes, and their frames (B,).

    Silence follows every clip, at least `TAIL_SAMPLES` of it, so that its codes do not depend on what else is in the batch;
    T is a whole number of codes. In the reference the batch ends in a mirror image of the buffer's end instead, as in
    `compute_slice_mel`.
    """
    spec = DVAE_MEL
    total_frames = -(-(read_size(wav_BS, 1) + TAIL_SAMPLES) // SAMPLES_PER_CODE) * FRAMES_PER_CODE
    wav = _clear_padding(wav_BS, lengths_B)
    padded = _mirror_start(tf.pad(wav, [[0, 0], [0, spec.window_samples // 2]]), spec)
    mel = _take_log(_compute_power_mel(padded, spec, total_frames, at_once=at_once), mel_norms_M)
    return mel, _count_frames(lengths_B, spec)


def compute_speaker_mel(wav_BS: Any, lengths_B: Any) -> tuple[Any, Any]:
    """The speaker encoder's input (B, T, M) from audio at 16 kHz, and its frames (B,). Zero past a clip's own frames.

    Each band has mean 0 and variance 1 over the clip.
    """
    spec = SPEAKER_MEL
    wav = _clear_padding(wav_BS, lengths_B)
    before = tf.concat([wav[:, 1:2], wav[:, :-1]], axis=1)
    emphasised = _clear_padding(wav - PREEMPHASIS * before, lengths_B)
    padded = _mirror_ends(emphasised, lengths_B, spec)
    power = _compute_power_mel(padded, spec, spec.count_frames(read_size(wav_BS, 1)))
    frames = _count_frames(lengths_B, spec)
    return _normalise_over_time(tf.math.log(power + SPEAKER_POWER_OFFSET), frames), frames


def make_silent_frame(mel_norms_M: NDArray[np.float32]) -> Any:
    """The frame (M,) of silence, in the conditioning and the DVAE mel."""
    return _take_log(tf.zeros(mel_norms_M.shape), mel_norms_M)


def _count_frames(lengths_B: Any, spec: MelSpec) -> Any:
    return 1 + tf.cast(lengths_B, tf.int32) // spec.hop_samples


def _clear_padding(wav_BS: Any, lengths_B: Any) -> Any:
    return tf.where(mark_positions(lengths_B, read_size(wav_BS, 1)), wav_BS, 0.0)


def _mirror_start(wav_BS: Any, spec: MelSpec) -> Any:
    """Half a window of the clip's mirror image in front of it."""
    half = spec.window_samples // 2
    return tf.concat([tf.reverse(wav_BS[:, 1 : half + 1], axis=[1]), wav_BS], axis=1)


def _mirror_ends(wav_BS: Any, lengths_B: Any, spec: MelSpec) -> Any:
    """Half a window of each clip's mirror image in front of it and behind its own end. Needs zeros past the ends."""
    half = spec.window_samples // 2
    wav = tf.pad(wav_BS, [[0, 0], [0, half]])
    steps = tf.range(1, half + 1)[None, :]
    last = tf.cast(lengths_B, tf.int32)[:, None] - 1
    # A row shorter than half a window, as one that only fills a batch, has no such image: it repeats its first sample.
    image = tf.gather(wav, tf.maximum(last - steps, 0), batch_dims=1)
    rows = tf.broadcast_to(tf.range(read_size(wav, 0))[:, None], tf.shape(image))
    # Five times faster than gathering the whole signal through mirrored positions.
    wav = tf.tensor_scatter_nd_add(
        wav, tf.stack([rows, tf.broadcast_to(last + steps, tf.shape(image))], axis=-1), image
    )
    return _mirror_start(wav, spec)


def _compute_power_mel(padded_BS: Any, spec: MelSpec, frames: Any, *, at_once: bool = False) -> Any:
    """Mel power (B, frames, M) of audio that starts half a window before the first frame's centre."""
    batch = read_size(padded_BS, 0)
    if at_once or not (isinstance(batch, int) and isinstance(frames, int)):
        return _compute_rows_power_mel(padded_BS, spec, frames)
    rows = max(1, GROUP_NUMBERS // (frames * spec.fft_samples))
    groups = [_compute_rows_power_mel(padded_BS[row : row + rows], spec, frames) for row in range(0, batch, rows)]
    return tf.concat(groups, axis=0)


def _compute_rows_power_mel(padded_BS: Any, spec: MelSpec, frames: Any) -> Any:
    spectrum = tf.signal.rfft(_cut_frames(padded_BS, spec, frames) * make_window(spec), [spec.fft_samples])
    # Nothing above the top band's upper corner counts.
    bins = math.floor(spec.top_hz * spec.fft_samples / spec.rate_hz) + 1
    spectrum = spectrum[..., :bins]
    power = tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
    return multiply_in_tiles(power, make_filterbank(spec)[:bins])


def _cut_frames(padded_BS: Any, spec: MelSpec, frames: Any) -> Any:
    """Overlapping windows (B, frames, window): hops laid side by side, which is faster than gathering."""
    hops_per_window = -(-spec.window_samples // spec.hop_samples)
    needed = (frames - 1 + hops_per_window) * spec.hop_samples
    missing = tf.maximum(needed - read_size(padded_BS, 1), 0)
    exact = tf.pad(padded_BS, [[0, 0], [0, missing]])[:, :needed]
    hops = tf.reshape(exact, (read_size(padded_BS, 0), frames - 1 + hops_per_window, spec.hop_samples))
    windows = tf.concat([hops[:, first : first + frames] for first in range(hops_per_window)], axis=-1)
    return windows[..., : spec.window_samples]


def _take_log(power_BTM: Any, mel_norms_M: NDArray[np.float32]) -> Any:
    # A product with a constant: divisions are rewritten by TensorFlow in a graph but not outside it, which changes bits.
    return tf.math.log(tf.maximum(power_BTM, POWER_FLOOR)) * (np.float32(1.0) / np.asarray(mel_norms_M, np.float32))


def _normalise_over_time(mel_BTM: Any, frames_B: Any) -> Any:
    """Mean 0 and variance 1 per band over each clip's own frames; 0 past them."""
    own = mark_positions(frames_B, read_size(mel_BTM, 1))[..., None]
    count = tf.cast(frames_B, tf.float64)[:, None, None]
    mel = tf.cast(mel_BTM, tf.float64)
    centred = mel - _sum_over_time(tf.where(own, mel, 0.0)) / count
    variance = _sum_over_time(tf.where(own, tf.square(centred), 0.0)) / count
    return tf.where(own, tf.cast(centred / tf.sqrt(variance + VARIANCE_OFFSET), tf.float32), 0.0)


def _sum_over_time(values_BTM: Any) -> Any:
    whole = tf.cast(tf.round(values_BTM * _FIXED_POINT), tf.int64)
    return tf.cast(tf.reduce_sum(whole, axis=1, keepdims=True), tf.float64) / _FIXED_POINT
