"""Windows and mel filterbanks, as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from myxtts.units import HOP_SAMPLES, SAMPLE_RATE_HZ, SPEAKER_RATE_HZ


@dataclass(frozen=True, kw_only=True)
class MelSpec:
    """The numbers behind one kind of mel spectrogram."""

    rate_hz: int
    fft_samples: int
    window_samples: int
    hop_samples: int
    window: Literal["hann", "hamming"]
    bands: int
    top_hz: float
    unit_area: bool
    """Each band divided by its width in Hz ("slaney" norm), else each with a peak of about 1."""

    def count_frames(self, samples: int) -> int:
        """Frames of `samples` samples; the centre of frame t is sample t * hop."""
        return 1 + samples // self.hop_samples


DVAE_MEL = MelSpec(
    rate_hz=SAMPLE_RATE_HZ,
    fft_samples=4 * HOP_SAMPLES,
    window_samples=4 * HOP_SAMPLES,
    hop_samples=HOP_SAMPLES,
    window="hann",
    bands=80,
    top_hz=8000.0,
    unit_area=True,
)
CONDITIONING_MEL = replace(DVAE_MEL, fft_samples=8 * HOP_SAMPLES)
PREEMPHASIS = 0.97
"""The speaker encoder hears each sample less so much of the one before."""
SPEAKER_MEL = MelSpec(
    rate_hz=SPEAKER_RATE_HZ,
    fft_samples=512,
    window_samples=SPEAKER_RATE_HZ // 40,  # 25 ms
    hop_samples=SPEAKER_RATE_HZ // 100,  # 10 ms
    window="hamming",
    bands=64,
    top_hz=SPEAKER_RATE_HZ / 2,
    unit_area=False,
)


def make_window(spec: MelSpec) -> NDArray[np.float32]:
    """The periodic window (window_samples,)."""
    base = {"hann": 0.5, "hamming": 0.54}[spec.window]
    turn = 2 * np.pi * np.arange(spec.window_samples) / spec.window_samples
    return (base - (1 - base) * np.cos(turn)).astype(np.float32)


@lru_cache(maxsize=8)
def make_filterbank(spec: MelSpec) -> NDArray[np.float32]:
    """Triangles on the HTK mel scale, (fft_samples // 2 + 1, bands)."""
    bins_hz = np.linspace(0.0, spec.rate_hz // 2, spec.fft_samples // 2 + 1)
    top_mel = 2595.0 * float(np.log10(1.0 + spec.top_hz / 700.0))
    corners_hz = 700.0 * (10.0 ** (np.linspace(0.0, top_mel, spec.bands + 2) / 2595.0) - 1.0)
    left, centre, right = corners_hz[:-2], corners_hz[1:-1], corners_hz[2:]
    rising = (bins_hz[:, None] - left) / (centre - left)
    falling = (right - bins_hz[:, None]) / (right - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    if spec.unit_area:
        triangles *= 2.0 / (right - left)
    filterbank = triangles.astype(np.float32)
    # Cached, so shared: nobody may write to it.
    filterbank.flags.writeable = False
    return filterbank


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
