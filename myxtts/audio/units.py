"""The lengths XTTS counts in: samples, mel frames, audio codes."""

from __future__ import annotations

SAMPLE_RATE_HZ = 22050
"""Rate of everything the GPT and the DVAE hear."""
SPEAKER_RATE_HZ = 16000
"""Rate of what the speaker encoder hears."""

HOP_SAMPLES = 256
FRAMES_PER_CODE = 4
SAMPLES_PER_CODE = HOP_SAMPLES * FRAMES_PER_CODE  # 1024, or 46.4 ms

MIN_SLICE_SAMPLES = 3 * SAMPLE_RATE_HZ  # 66150
MAX_SLICE_SAMPLES = 6 * SAMPLE_RATE_HZ  # 132300
MEAN_SLICE_SAMPLES = (MIN_SLICE_SAMPLES + MAX_SLICE_SAMPLES) // 2  # 99225
