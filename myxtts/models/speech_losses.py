"""How far speech is from a recording: by ear, by its rivals' judgement, and by what else the rivals say of it.

Each loss is one number per row, so that rows which only fill a batch can be left out and parts of a batch add up.

Shape suffixes: B batch, S samples, T frames, M mel bands.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from myxtts.audio.filterbanks import MelSpec, make_filterbank
from myxtts.audio.tiles import multiply_in_tiles
from myxtts.models.discriminators import compute_magnitudes
from myxtts.models.speech_units import SAMPLES_PER_FRAME, SPEECH_RATE_HZ

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
