"""A batch on the host: what the files say, padded to one shape, and nothing computed from it yet.

Shapes: B rows, S samples, L text tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.data.positions import Position
from myxtts.data.replacements import Failure


@dataclass(frozen=True, eq=False)
class HostBatch:
    """One micro-batch, or some rows of it. A pure function of its position and of the clips that failed there.

    Arrays may be views of memory that is used again once nobody refers to them; never write to them.
    """

    position: Position
    epoch: int
    bucket_number: int
    first_row: int
    """Its first row's number in the global batch."""
    micro_batches: int
    """Of its global batch."""
    step_clips: NDArray[np.int32]
    """The clips of its whole global batch, or of the share of it that is read, those that failed replaced."""
    clips_B: NDArray[np.int32]
    """Clip numbers; `EMPTY_ROW` where there is none: such a row is all zeros."""
    weights_B: NDArray[np.float32]
    """What a row counts in the losses: 1, or 0 where there is no clip."""
    wav_BS: NDArray[np.float32]
    """Samples at 22.05 kHz, zeros behind each clip's own."""
    wav_lengths_B: NDArray[np.int32]
    text_BL: NDArray[np.int32]
    """Token ids with the language tag, without start and stop; zeros behind each text's own."""
    text_lengths_B: NDArray[np.int32]
    slice_starts_B: NDArray[np.int32]
    """First sample of each conditioning slice, counted in the clip it is cut from."""
    slice_lengths_B: NDArray[np.int32]
    prompt_BS: NDArray[np.float32] | None = None
    """The clips that the slices are cut from; None where each is cut from its own."""
    replaced: tuple[Failure, ...] = ()
    """Clips and prompts of its rows that failed."""

    @property
    def rows(self) -> int:
        """Rows of this batch, empty ones included."""
        return len(self.clips_B)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, samples and text tokens: what a traced function is specialised on."""
        return self.rows, self.wav_BS.shape[1], self.text_BL.shape[1]
