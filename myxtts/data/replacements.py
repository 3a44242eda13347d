"""What happens to a clip that fails while training: another one takes its row, always the same one.

The journal lists failures by position. Which clip a row finally holds is a pure function of the position and the journal,
whatever the order in which readers found the failures, so journals of several readers or ranks can simply be joined.
A clip that failed is tried again in the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from myxtts.data.sampler import EMPTY_ROW, GlobalBatch, IndexSampler, MicroBatch


@dataclass(frozen=True, order=True)
class Failure:
    """A clip that could not be used at one place of the run."""

    step: int
    row: int
    """The row's number in the global batch, as `MicroBatch.first_row` counts; `name_prompt` of it, where the clip was only to be
    heard as that row's voice prompt."""
    clip: int


def name_prompt(row: int) -> int:
    """The place of a row's voice prompt in a journal."""
    return -1 - row


class ReplacementJournal:
    """The failures of a run so far."""

    def __init__(self, failures: Iterable[Failure] = ()):
        self._failures: dict[tuple[int, int], set[int]] = {}
        for failure in failures:
            self.record(failure)

    def record(self, failure: Failure) -> None:
        """Note a failure. Noting it twice changes nothing."""
        self._failures.setdefault((failure.step, failure.row), set()).add(failure.clip)

    def find_failed(self, step: int, row: int) -> set[int]:
        """The clips that failed at a place."""
        return set(self._failures.get((step, row), ()))

    def list_failures(self, first_step: int = 0) -> list[Failure]:
        """All failures at or after a step, sorted."""
        places = sorted(place for place in self._failures if place[0] >= first_step)
        return [failure for place in places for failure in self.list_failures_at(*place)]

    def list_failures_at(self, step: int, row: int) -> list[Failure]:
        """The failures at a place, sorted."""
        return [Failure(step, row, clip) for clip in sorted(self.find_failed(step, row))]


def replace_failed(batch: GlobalBatch, sampler: IndexSampler, journal: ReplacementJournal) -> GlobalBatch:
    """The batch with every clip that failed at its place replaced."""
    present = set(batch.clips.tolist())
    replaced: list[MicroBatch] = []
    for micro_batch in batch.micro_batches:
        clips = micro_batch.clips.copy()
        for row, clip in enumerate(clips.tolist(), start=micro_batch.first_row):
            failed = journal.find_failed(batch.step, row)
            if clip in failed:
                substitutes = sampler.draw_substitutes(batch, row, micro_batch.bucket_number).tolist()
                # A corpus of a handful of clips: better an empty row than the same clip twice in a batch.
                fitting = (each for each in substitutes if each not in present | failed)
                clips[row - micro_batch.first_row] = next(fitting, EMPTY_ROW)
        replaced.append(replace(micro_batch, clips=clips))
    return replace(batch, micro_batches=tuple(replaced))
