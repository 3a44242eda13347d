"""What comes through the pipeline, and in which order: a pure function of a number that counts batches from step 0.

The micro-batches of every step come in turn. Behind every `validation_interval`-th step, and behind the last one, comes a
round of all validation batches. The numbers do not depend on where a run was resumed; the round behind a last step that is
no multiple of the interval is counted only while that step is the last one."""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import NamedTuple

from myxtts.data.sampler import IndexSampler, Position, find_position, number_position


class Kind(StrEnum):
    """What a batch is for."""

    TRAIN = "train"
    VALIDATION = "validation"


class Place(NamedTuple):
    """What a number stands for."""

    kind: Kind
    position: Position
    """In the sampler of its kind. The batches of a validation round are steps 0, 1, ... of the validation sampler."""
    updates: int
    """Updates done before this place: the number of its step, or after how many updates the round validates."""


class RunOrder:
    """The order of a run's batches. Holds no position and no list: any number is found without walking.

    Args:
        sampler: of the training clips.
        validation_batches: in a round; 0 means that there are no rounds.
        validation_interval: updates between two rounds.
        end_step: updates of the whole run.
        first_step: updates done before this process started.
        is_validated: whether the round due after `first_step` updates, if one is, was finished before. The stream begins
            with it if not.
    """

    def __init__(
        self,
        sampler: IndexSampler,
        validation_batches: int,
        *,
        validation_interval: int,
        end_step: int,
        first_step: int = 0,
        is_validated: bool = True,
    ):
        assert validation_batches >= 0, validation_batches
        assert validation_interval >= 1, validation_interval
        assert 0 <= first_step <= end_step, f"from step {first_step} to {end_step}"
        self.validation_batches = validation_batches
        self.validation_interval = validation_interval
        self.first_step = first_step
        self.end_step = end_step
        self._sampler = sampler
        is_due = first_step > 0 and first_step % validation_interval == 0
        self.first_number = self.number_step(first_step) - (validation_batches if is_due and not is_validated else 0)
        """Of the first batch in the stream."""
        has_own_round = end_step % validation_interval != 0
        self.end_number = self.number_step(end_step) + (validation_batches if has_own_round else 0)
        """One more than the number of the last batch."""

    def __len__(self) -> int:
        return self.end_number - self.first_number

    def number_step(self, step: int) -> int:
        """The number of a step's first micro-batch: behind the round, if one is due before it."""
        rounds = step // self.validation_interval
        return number_position(self._sampler, Position(step)) + rounds * self.validation_batches

    def find_place(self, number: int) -> Place:
        """What comes with a number. Those before the first one are found too: they are the same in every process."""
        if not 0 <= number < self.end_number:
            raise IndexError(f"batch {number} of {self.end_number}")
        interval = self.validation_interval
        # An interval is `interval` steps and the round behind them; the last one may be shorter.
        past = bisect_right(
            range(1, self.end_step // interval + 1), number, key=lambda n: self.number_step(n * interval)
        )
        until = min((past + 1) * interval, self.end_step)
        first = number_position(self._sampler, Position(past * interval))
        in_interval = number - self.number_step(past * interval)
        in_round = in_interval - (number_position(self._sampler, Position(until)) - first)
        if in_round >= 0:
            return Place(Kind.VALIDATION, Position(in_round), until)
        position = find_position(self._sampler, first + in_interval)
        return Place(Kind.TRAIN, position, position.step)

    def is_last_of_round(self, number: int) -> bool:
        """Whether a number is that of the last batch of a validation round."""
        place = self.find_place(number)
        return place.kind is Kind.VALIDATION and place.position.step + 1 == self.validation_batches
