"""Where the shared recordings are, and how to make small corpora."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).resolve().parents[2]


def find_shared_data(*parts: str) -> Path:
    """A folder of the shared recordings; skips the test where they are absent."""
    path = Path(os.environ.get("MYXTTS_SHARED_DIR", ROOT.parent / "shared")).joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"the shared recordings are not on this machine: {path}")
    return path


def find_parity_file(name: str) -> Path:
    """A file of the parity fixtures; skips the test where they are absent."""
    shared = Path(os.environ.get("MYXTTS_SHARED_DIR", ROOT.parent / "shared"))
    path = Path(os.environ.get("MYXTTS_PARITY_DIR", shared / "parity")) / name
    if not path.exists():
        pytest.skip(f"the parity fixtures are not on this machine: {path}")
    return path


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
