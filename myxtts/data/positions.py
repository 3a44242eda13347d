"""Places in a run: which micro-batch of which global step."""

from __future__ import annotations

from typing import NamedTuple

from myxtts.data.sampler import IndexSampler


class Position(NamedTuple):
    """A micro-batch's place in a run. Places compare in the order in which they are trained on."""

    step: int
    """Global step, from 0 over all epochs."""
    micro_batch: int = 0


def count_micro_batches(sampler: IndexSampler, step: int) -> int:
    """Micro-batches of a global step: as many as gradients are accumulated over, fewer at the end of an epoch."""
    before = step % sampler.steps_per_epoch * sampler.accumulation
    return min(sampler.accumulation, sampler.plan.batches_per_epoch - before)


def follow_position(sampler: IndexSampler, position: Position) -> Position:
    """The place after this one."""
    if position.micro_batch + 1 < count_micro_batches(sampler, position.step):
        return Position(position.step, position.micro_batch + 1)
    return Position(position.step + 1)


def number_position(sampler: IndexSampler, position: Position) -> int:
    """How many micro-batches come before this place."""
    epoch, step = divmod(position.step, sampler.steps_per_epoch)
    return epoch * sampler.plan.batches_per_epoch + step * sampler.accumulation + position.micro_batch


def find_position(sampler: IndexSampler, number: int) -> Position:
    """The place that so many micro-batches come before."""
    epoch, batch = divmod(number, sampler.plan.batches_per_epoch)
    step, micro_batch = divmod(batch, sampler.accumulation)
    return Position(epoch * sampler.steps_per_epoch + step, micro_batch)
