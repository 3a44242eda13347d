"""What to do when a producer has died: start another, start one that needs less memory, replace a batch, or give up."""

from __future__ import annotations

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.death import Cause, Death

MOST_RESTARTS = 10
"""Without a batch in between."""
MOST_REPLACED = 4
"""Batches, without one that could be made in between."""


class Recovery:
    """Remembers deaths and decides about each.

    Args:
        preparation_batch: rows prepared at a time, or None when the task does not say.
    """

    def __init__(self, preparation_batch: int | None):
        self.preparation_batch = preparation_batch
        self._restarts = 0
        self._replaced = 0
        self._position: int | None = None
        self._deaths_here = 0

    def note_progress(self, position: int) -> None:
        """A batch was made: deaths at it no longer count. Those at a later one do: it is still to be made."""
        self._restarts = self._replaced = 0
        if self._position is None or position >= self._position:
            self._forget_position()

    def decide(self, death: Death) -> int | None:
        """The batch that must have other clips before the next producer starts, if any does.

        Raises `ProducerFailedError` when nothing is left to try.
        """
        if death.cause in (Cause.OUT_OF_MEMORY, Cause.PROBABLY_OUT_OF_MEMORY):
            if self.preparation_batch is not None and self.preparation_batch > 1:
                self.preparation_batch //= 2
                self._forget_position()
                return None
            if death.cause is Cause.OUT_OF_MEMORY:
                raise ProducerFailedError(self._explain_no_memory(death))
        self._restarts += 1
        is_to_blame = self._count_death_here(death.position) == 2
        if self._restarts > MOST_RESTARTS or (is_to_blame and self._replaced == MOST_REPLACED):
            replaced = f", though its clips were replaced {self._replaced} times" if self._replaced else ""
            raise ProducerFailedError(
                f"The producer died {self._restarts} times without preparing a batch{replaced}. "
                f"Last: {death}{death.quote_report()}"
            )
        if not is_to_blame:
            return None
        self._replaced += 1
        self._forget_position()
        return death.position

    def _count_death_here(self, position: int | None) -> int:
        """Deaths in a row at one batch; a death that has nothing to do with a batch blames none."""
        if position is None:
            return 0
        if position != self._position:
            self._position, self._deaths_here = position, 0
        self._deaths_here += 1
        return self._deaths_here

    def _forget_position(self) -> None:
        self._position, self._deaths_here = None, 0

    def _explain_no_memory(self, death: Death) -> str:
        what = (
            "Preparing one clip at a time does not fit into the producer's memory."
            if self.preparation_batch == 1
            else "The producer's memory does not suffice, and its task has no preparation_batch that could be halved."
        )
        return f"{what} Raise --data-gpu-memory, or drop the longest clips. The producer ended with: {death}{death.quote_report()}"
