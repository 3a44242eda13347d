"""What was said: the samples, and how each piece of the text went."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SpokenPiece:
    """One piece of a text after it was spoken."""

    text: str
    codes: int
    """Codes it took, the stop token included."""
    stopped: bool
    """Whether the model came to an end by itself. If not, it was cut off, and its end may be missing or babble."""
    seconds: float


@dataclass(frozen=True)
class SpeechChunk:
    """The next samples of a stream."""

    samples: NDArray[np.float32]
    piece: SpokenPiece | None = None
    """With the last samples of a piece, how it went."""


@dataclass(frozen=True)
class Speech:
    """A spoken text."""

    samples: NDArray[np.float32]
    """In [-1, 1]."""
    rate_hz: int
    pieces: tuple[SpokenPiece, ...]

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate_hz

    @property
    def unfinished(self) -> tuple[SpokenPiece, ...]:
        """Pieces that were cut off because the model did not stop by itself."""
        return tuple(piece for piece in self.pieces if not piece.stopped)


def to_pcm16(samples: NDArray[np.float32]) -> bytes:
    """Samples as 16-bit integers, little-endian; what is beyond full scale is clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()
