"""What happens to a clip that fails while training: another one takes its row, always the same one.

The journal lists failures by position. Which clip a row finally holds is a pure function of the position and the journal,
whatever the order in which readers found the failures, so journals of several readers or ranks can simply be joined.
A clip that failed is tried again in the next epoch; one that kills whoever uses it is not used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from myxtts.data.places import parse_place
from myxtts.data.sampler import EMPTY_ROW, GlobalBatch, IndexSampler, MicroBatch

_MOST_DRAWS = 64


@dataclass(frozen=True, order=True)
class Failure:
    """A clip that could not be used at one place of the run."""

    step: int
    row: int
    """The row's number in the global batch, as `MicroBatch.first_row` counts; `name_prompt` of it, where the clip was only to be
    heard as that row's voice prompt."""
    clip: int
    kills: bool = False
    """Whether whoever used it died of it."""


class ReplacementJournal:
    """The failures of a run so far."""

    def __init__(self, failures: Iterable[Failure] = ()):
        self._failures: dict[tuple[int, int], dict[int, Failure]] = {}
        self._deadly: dict[int, tuple[int, int]] = {}
        """Step and row from which on clips are known to kill."""
        for failure in failures:
            self.record(failure)

    def record(self, failure: Failure) -> None:
        """Note a failure. Noting it twice changes nothing."""
        here = self._failures.setdefault((failure.step, failure.row), {})
        here[failure.clip] = max(failure, here.get(failure.clip, failure))
        if failure.kills:
            place = (failure.step, parse_place(failure.row).row)
            self._deadly[failure.clip] = min(place, self._deadly.get(failure.clip, place))

    def find_failed(self, step: int, row: int) -> set[int]:
        """The clips that failed at a place."""
        return set(self._failures.get((step, row), ()))

    def is_deadly(self, clip: int, step: int, row: int) -> bool:
        """Whether a clip has killed at this row or before it."""
        # Not at rows before it: they were made without knowing, and must come out the same when a run is resumed there.
        return clip in self._deadly and self._deadly[clip] <= (step, row)

    def list_deadly(self, step: int, row: int) -> set[int]:
        """The clips that have killed at this row or before it."""
        return {clip for clip in self._deadly if self.is_deadly(clip, step, row)}

    def list_failures(self, first_step: int = 0) -> list[Failure]:
        """All failures at or after a step and those that killed, sorted."""
        failures = (failure for here in self._failures.values() for failure in here.values())
        return sorted(failure for failure in failures if failure.step >= first_step or failure.kills)

    def list_failures_at(self, step: int, row: int) -> list[Failure]:
        """The failures at a place, sorted."""
        return sorted(self._failures.get((step, row), {}).values())


def replace_failed(batch: GlobalBatch, sampler: IndexSampler, journal: ReplacementJournal) -> GlobalBatch:
    """The batch with every clip that failed at its place replaced."""
    present = set(batch.clips.tolist())
    return replace(
        batch,
        micro_batches=tuple(
            _replace_rows(micro_batch, batch.step, present, sampler, journal) for micro_batch in batch.micro_batches
        ),
    )


def _replace_rows(
    micro_batch: MicroBatch, step: int, present: set[int], sampler: IndexSampler, journal: ReplacementJournal
) -> MicroBatch:
    clips = micro_batch.clips.tolist()
    for offset, clip in enumerate(clips):
        row = micro_batch.first_row + offset
        failed = journal.find_failed(step, row)
        if clip in failed or journal.is_deadly(clip, step, row):
            excluded = present | failed | journal.list_deadly(step, row)
            clips[offset] = _choose_substitute(step, row, micro_batch.bucket_number, excluded, sampler)
    return replace(micro_batch, clips=np.array(clips, dtype=np.int32))


def _choose_substitute(step: int, row: int, bucket_number: int, excluded: set[int], sampler: IndexSampler) -> int:
    for clip in sampler.draw_substitutes(step, row, bucket_number, _MOST_DRAWS).tolist():
        if clip not in excluded:
            return int(clip)
    # A corpus of a handful of clips: better an empty row than the same clip twice in a batch.
    return EMPTY_ROW
