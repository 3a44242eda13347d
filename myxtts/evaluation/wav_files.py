"""Samples as wav files: mono, 16 bit."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.inference.speech import to_pcm16


def write_wav(path: Path, samples: NDArray[np.float32], rate_hz: int) -> None:
    """Writes a sound file in place of what is there."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(to_pcm16(samples))
