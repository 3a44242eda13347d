"""How long each clip and its voice prompt are when the model gets them, and what the losses are divided by.

Shapes: B clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.augment import SPEED_STEPS, AugmentDraws
from myxtts.audio.slices import Slices
from myxtts.audio.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLES_PER_CODE
from myxtts.data.corpus import Corpus
from myxtts.models.sizes import STOP_CODES

Lengths = NDArray[np.int32]

STOP_TEXT_TOKENS = 1
"""Stop tokens a text is trained on after its last token."""


@dataclass(frozen=True, eq=False)
class ClipSpans:
    """Lengths of clips and where their prompts lie, in samples of what the model hears."""

    samples_B: Lengths
    starts_B: Lengths
    prompts_B: Lengths
    """Length of each prompt."""

    @property
    def codes_B(self) -> Lengths:
        return -(-self.samples_B // SAMPLES_PER_CODE)

    @property
    def frames_B(self) -> Lengths:
        """Mel frames, those of the clip's last code included but none beyond it."""
        frames = np.minimum(1 + self.samples_B // HOP_SAMPLES, FRAMES_PER_CODE * self.codes_B)
        return frames.astype(np.int32)

    @property
    def spans_B2(self) -> Lengths:
        """First and last sample (exclusive) of each prompt."""
        return np.stack([self.starts_B, self.starts_B + self.prompts_B], axis=1)

    def count_prompt_codes(self) -> int:
        """Audio targets that lie under a prompt, as the loss blanks them."""
        bounds = self.spans_B2 // SAMPLES_PER_CODE
        return int(np.sum(bounds[:, 1] - bounds[:, 0]))


def measure_spans(samples_B: Lengths, slices: Slices, prompt_samples: int, draws: AugmentDraws | None) -> ClipSpans:
    """The spans of clips after augmentation; a prompt is cut to the longest that is allowed."""
    spans = [samples_B, slices.starts, slices.lengths]
    if draws is not None:
        spans[0] = change_length(samples_B, draws.speed_steps)
        # Rounded down, so that a prompt still lies inside its clip.
        spans[1:] = [span.astype(np.int64) * SPEED_STEPS // draws.speed_steps for span in spans[1:]]
    samples, starts, lengths = (span.astype(np.int32) for span in spans)
    return ClipSpans(samples, starts, np.minimum(lengths, np.int32(prompt_samples)))


def change_length(samples_B: Lengths, speed_steps_B: NDArray[np.int32]) -> Lengths:
    """Samples of clips after a change of speed, as `augment_tf.change_speed` makes them."""
    steps = speed_steps_B.astype(np.int64)
    return ((samples_B.astype(np.int64) * SPEED_STEPS + steps - 1) // steps).astype(np.int32)


@dataclass(frozen=True)
class StepTotals:
    """What the losses of a global batch are divided by."""

    text: int
    audio: int
    prompt: int
    """Those of the audio targets that lie under a prompt."""
    frames: int
    clips: int


def count_totals(corpus: Corpus, clips_B: NDArray[np.int32], spans: ClipSpans) -> StepTotals:
    """The totals of a global batch with these clips."""
    return StepTotals(
        text=int(np.sum(corpus.tokens[clips_B] + STOP_TEXT_TOKENS)),
        audio=int(np.sum(spans.codes_B + STOP_CODES)),
        prompt=spans.count_prompt_codes(),
        frames=int(np.sum(spans.frames_B)),
        clips=len(clips_B),
    )
