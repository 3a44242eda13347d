"""The clips a run trains on, in columns: a million of them take a few hundred megabytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.columns import NameColumn, TextColumn


@dataclass(frozen=True, eq=False)
class Corpus:
    """Usable clips in metadata order. Clip numbers are positions in these columns."""

    root: Path
    audio: TextColumn
    """Each clip's file, relative to the root."""
    text: TextColumn
    speaker: NameColumn
    language: NameColumn
    samples: NDArray[np.int64]
    """Each clip's length at the model's rate, whatever the file's own rate."""
    tokens: NDArray[np.int32]
    """Each text's length in tokens."""
    size_bytes: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    """With the size, a file's identity for caches."""

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, clips: NDArray[np.intp]) -> Corpus:
        """A corpus of these clips, in this order. They are numbered anew."""
        return Corpus(
            root=self.root,
            audio=self.audio.take(clips),
            text=self.text.take(clips),
            speaker=self.speaker.take(clips),
            language=self.language.take(clips),
            samples=self.samples[clips],
            tokens=self.tokens[clips],
            size_bytes=self.size_bytes[clips],
            mtime_ns=self.mtime_ns[clips],
        )

    def find_file(self, clip: int) -> Path:
        """The audio file of a clip."""
        return self.root / self.audio[clip]

    @property
    def total_seconds(self) -> float:
        """Duration of all clips together."""
        return int(self.samples.sum()) / SAMPLE_RATE_HZ


def resample_length(frames: NDArray[np.int64], rate_hz: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many samples clips have after resampling to the model's rate: rounded up, as the resampler does."""
    return -(-frames * SAMPLE_RATE_HZ // rate_hz)
