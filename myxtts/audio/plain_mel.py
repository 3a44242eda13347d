"""The log-mel spectrogram of a clip in NumPy, for pictures and distances: nothing here starts TensorFlow.

Shapes: S samples, F frames, W window samples, M mel bands.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.filterbanks import DVAE_MEL, make_filterbank, make_window

POWER_FLOOR = 1e-5
"""As in the model's own mels: what is quieter is silence."""


def compute_log_mel(samples_S: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural logarithms of the mel power (F, M) of a clip at 22.05 kHz; frame t is centred on sample t * hop."""
    spec = DVAE_MEL
    padded = np.pad(np.asarray(samples_S, np.float32), spec.window_samples // 2)
    windows_FW = np.lib.stride_tricks.sliding_window_view(padded, spec.window_samples)[:: spec.hop_samples]
    power_FB = np.square(np.abs(np.fft.rfft(windows_FW * make_window(spec), spec.fft_samples)))
    mel_FM = power_FB.astype(np.float32) @ make_filterbank(spec)
    log_FM: NDArray[np.float32] = np.log(np.maximum(mel_FM, np.float32(POWER_FLOOR)))
    return log_FM


SILENT_LOG_POWER = math.log(POWER_FLOOR)
"""The darkest value of a picture."""
