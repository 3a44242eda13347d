"""Which part of a clip the waveform decoder is trained on. A part costs the same whatever the clip's length.

Shapes: B clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.draws import Purpose, draw_integers
from myxtts.models.speech_units import SAMPLES_PER_FRAME, SEGMENT_FRAMES, count_frames
from myxtts.pipeline.order import Kind
from myxtts.pipeline.targets import Lengths


@dataclass(frozen=True, eq=False)
class Segments:
    """One segment of each clip, on the grid of the decoder's frames."""

    starts_B: Lengths
    """First frame."""
    frames_B: Lengths
    """Frames that belong to the clip; those behind a short clip's end are filling."""

    @property
    def start_samples_B(self) -> Lengths:
        return self.starts_B * SAMPLES_PER_FRAME

    @property
    def samples_B(self) -> Lengths:
        return self.frames_B * SAMPLES_PER_FRAME


def choose_segments(kind: Kind, codes_B: Lengths, *, seed: int, epoch: int, clips_B: NDArray[np.int32]) -> Segments:
    """Segments of clips with so many codes: in training another one in every epoch, in validation the middle."""
    frames_B = np.array([count_frames(int(codes)) for codes in codes_B], np.int64)
    last_B = np.maximum(frames_B - SEGMENT_FRAMES, 0)
    if kind is Kind.VALIDATION:
        starts_B = last_B // 2
    else:
        starts_B = draw_integers(seed, epoch, clips_B, Purpose.SEGMENT_START, 0, last_B[:, None])[:, 0]
    own_B = np.minimum(frames_B - starts_B, SEGMENT_FRAMES)
    return Segments(starts_B.astype(np.int32), own_B.astype(np.int32))
