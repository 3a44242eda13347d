"""Small corpora, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import soundfile


def make_tone(seconds: float = 1.0, rate_hz: int = 22050) -> np.ndarray:
    return 0.3 * np.sin(np.arange(round(seconds * rate_hz)) * 0.05)


def write_clips(folder: Path, names: Iterable[str], seconds: float = 1.0) -> None:
    """Write a tone to `wavs/` for each name."""
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    for name in names:
        soundfile.write(folder / "wavs" / f"{name}.wav", make_tone(seconds), 22050)


def write_metadata(folder: Path, *lines: str, name: str = "metadata.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
