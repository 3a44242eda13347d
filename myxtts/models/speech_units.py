"""The lengths the waveform decoder counts in: latents, frames, samples of speech. No TensorFlow."""

from __future__ import annotations

import math

from myxtts.audio.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLE_RATE_HZ

SPEECH_RATE_HZ = 24_000
"""Rate of what the decoder says."""
RATE_CHANGE = SPEECH_RATE_HZ / SAMPLE_RATE_HZ
FRAMES_PER_LATENT = float(FRAMES_PER_CODE)
SAMPLES_PER_FRAME = HOP_SAMPLES

SEGMENT_FRAMES = 32
"""As much of a clip as one step of the decoder's training hears."""
SEGMENT_SAMPLES = SEGMENT_FRAMES * SAMPLES_PER_FRAME  # 8192, or 0.34 s


def count_frames(latents: int) -> int:
    """Frames that the decoder makes of so many latents."""
    return math.floor(math.floor(latents * FRAMES_PER_LATENT) * RATE_CHANGE)
