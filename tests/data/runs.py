"""Small corpora of tones, and configurations of runs over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import soundfile

from myxtts.config import XTTSConfig
from tests.data.shared import make_tone, write_metadata

WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "while", "seven", "others", "watch", "it"),
    *("from", "behind", "a", "hedge"),
)


def write_corpus(folder: Path, seconds: Sequence[float], *, texts: Mapping[int, str] = {}, more: str = "") -> Path:
    """A corpus of tones of these lengths. Texts not given grow with the clip."""
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for number, length in enumerate(seconds):
        soundfile.write(folder / "wavs" / f"{number}.wav", make_tone(length), 22050)
        words = [WORDS[(number + i) % len(WORDS)] for i in range(max(2, round(2 * length)))]
        lines.append(f"{number}|{texts.get(number, ' '.join(words))}{more}")
    write_metadata(folder, *lines)
    return folder


def make_config(
    corpus: Path, *, training: Mapping[str, Any] | None = None, model: Mapping[str, Any] | None = None, **data: Any
) -> XTTSConfig:
    """The configuration of a small run, which starts no worker."""
    return XTTSConfig(
        model={"size": "tiny", **(model or {})},
        data={"train_data": str(corpus), "num_workers": 0, "batch_size": 4, **data},
        training=dict(training or {}),
    )
