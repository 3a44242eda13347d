"""Which clips make which batch, in the place of which others, and whose voice they hear: pure functions of (seed, epoch, global step).

A *global batch* is what one update trains on. It is one or more *micro-batches* (gradient accumulation), each of one
bucket and so of one shape; ranks share every micro-batch by rows. The batches do not depend on how many ranks, readers or
slices there are, so a run can be resumed with others.

An epoch sees every clip exactly once. The clips of a bucket that do not fill a batch move on to the next longer bucket
(which ones is part of the shuffle); at the end one micro-batch may be short, and the last global batch of an epoch may
have fewer micro-batches. Nothing is carried from one epoch to the next."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.augment import Purpose, Slices, choose_evaluation_slices, draw_integers, draw_slices
from myxtts.data.buckets import Bucket, BucketPlan
from myxtts.data.corpus import Corpus, NameColumn
from myxtts.hashing import hash_words

EMPTY_ROW = -1
"""Stands in a batch for a row without a clip: zeros that count nothing in the loss."""

# What a hash is for: streams of different purpose must not repeat each other.
_CLIP_ORDER, _BATCH_ORDER, _SUBSTITUTE, _OWN_SUBSTITUTE = 1, 2, 3, 4

_KEPT_EPOCHS = 2
_OWN_SUBSTITUTES = 8
"""Clips that stand in for one row of a batch alone, as far as there are so many."""
_MOST_DRAWS = 64


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Clips that go through the network together, all padded to one shape."""

    bucket: Bucket
    bucket_number: int
    first_row: int
    """Its first row's number in the global batch."""
    clips: NDArray[np.int32]
    """Clip numbers by row; `EMPTY_ROW` where there is none."""
    prompts: NDArray[np.int32] | None = None
    """The clips whose parts are these clips' voice prompts; None where each hears a part of itself."""

    def slice_rows(self, part: int, parts: int) -> MicroBatch:
        """One of `parts` equal slices: for a rank, or for smaller micro-batches. Short slices get empty rows."""
        rows = -(-len(self.clips) // parts)

        def cut(clips: NDArray[np.int32]) -> NDArray[np.int32]:
            whole = np.full(rows, EMPTY_ROW, dtype=np.int32)
            own = clips[part * rows : (part + 1) * rows]
            whole[: len(own)] = own
            return whole

        return replace(
            self,
            bucket=replace(self.bucket, rows=rows),
            first_row=self.first_row + part * rows,
            clips=cut(self.clips),
            prompts=None if self.prompts is None else cut(self.prompts),
        )


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """Everything one update trains on."""

    step: int
    epoch: int
    micro_batches: tuple[MicroBatch, ...]

    @property
    def clips(self) -> NDArray[np.int32]:
        """The clip numbers of all rows, empty rows left out."""
        rows = np.concatenate([micro_batch.clips for micro_batch in self.micro_batches])
        clips: NDArray[np.int32] = rows[rows != EMPTY_ROW]
        return clips

    @property
    def prompts(self) -> NDArray[np.int32] | None:
        """The clips that `clips` hear as their voice prompts; None where each hears a part of itself, or nothing."""
        rows = [micro_batch.prompts for micro_batch in self.micro_batches if micro_batch.prompts is not None]
        if not rows:
            return None
        heard = np.concatenate(rows)
        prompts: NDArray[np.int32] = heard[heard != EMPTY_ROW]
        return prompts


@dataclass(frozen=True)
class RowShare:
    """Which rows of every micro-batch a process works on: one of `parts` equal slices."""

    part: int = 0
    parts: int = 1

    def cut(self, batch: GlobalBatch) -> GlobalBatch:
        """The global batch with only these rows. Those of all parts together are the whole."""
        if self.parts == 1:
            return batch
        return replace(
            batch, micro_batches=tuple(each.slice_rows(self.part, self.parts) for each in batch.micro_batches)
        )

    def shrink_all(self, buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
        """The shapes of batches with only these rows."""
        return tuple(replace(bucket, rows=-(-bucket.rows // self.parts)) for bucket in buckets)


WHOLE = RowShare()
"""Of a process that trains alone."""


@dataclass(frozen=True, eq=False)
class _EpochOrder:
    clips: NDArray[np.int32]
    """All clips, by bucket and within it by hash; batches are consecutive pieces of this."""
    batches: NDArray[np.int64]
    """The order in which those pieces are trained on."""


@dataclass(eq=False)
class IndexSampler:
    """Gives the global batch of any step. Holds no position: the order of calls does not matter.

    Args:
        plan: the shapes, and which clip belongs to which.
        seed: of the shuffle.
        accumulation: micro-batches in a global batch.
    """

    plan: BucketPlan
    _: KW_ONLY
    seed: int
    accumulation: int = 1

    def __post_init__(self) -> None:
        plan = self.plan
        self._bucket_of_batch = np.repeat(np.arange(len(plan.buckets)), plan.batches_of_bucket)
        rows = np.array([bucket.rows for bucket in plan.buckets])[self._bucket_of_batch]
        self._batch_ends = np.minimum(np.cumsum(rows), len(plan.bucket_of_clip))
        self._batch_starts = np.concatenate([[0], self._batch_ends[:-1]])
        self._clips_by_bucket = np.argsort(plan.bucket_of_clip, kind="stable").astype(np.int32)
        self._bucket_ends = np.cumsum(np.bincount(plan.bucket_of_clip, minlength=len(plan.buckets)))
        self._orders: OrderedDict[int, _EpochOrder] = OrderedDict()

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch."""
        return -(-self.plan.batches_per_epoch // self.accumulation)

    def find_epoch(self, step: int) -> int:
        """The epoch, from 0, that a global step belongs to."""
        return step // self.steps_per_epoch

    def make_batch(self, step: int) -> GlobalBatch:
        """The global batch of a step, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = self._order_epoch(epoch)
        micro_batches: list[MicroBatch] = []
        first_row = 0
        for batch in order.batches[position * self.accumulation : (position + 1) * self.accumulation]:
            number = int(self._bucket_of_batch[batch])
            bucket = self.plan.buckets[number]
            clips = np.full(bucket.rows, EMPTY_ROW, dtype=np.int32)
            own = order.clips[self._batch_starts[batch] : self._batch_ends[batch]]
            clips[: len(own)] = own
            micro_batches.append(MicroBatch(bucket, number, first_row, clips))
            first_row += bucket.rows
        return GlobalBatch(step, epoch, tuple(micro_batches))

    def draw_substitutes(self, batch: GlobalBatch, row: int, bucket_number: int) -> NDArray[np.int32]:
        """Clips that fit a bucket, in the order in which they may stand in for one of a row that cannot be read.

        First those that belong to this row alone, so that no clip stands in for two rows, nor for another row after it has
        failed in one; where there are too few of them, any.
        """
        end = int(self._bucket_ends[bucket_number])
        start = int(self._bucket_ends[bucket_number - 1]) if bucket_number else 0
        if start == end:
            # All its clips come from shorter buckets.
            start = 0
        size = end - start
        peers = [
            each.first_row + offset
            for each in batch.micro_batches
            if each.bucket_number == bucket_number
            for offset in range(len(each.clips))
        ]
        first, stride = hash_words(self.seed, _OWN_SUBSTITUTE, batch.step, bucket_number, np.arange(2)).tolist()
        # Steps that share no factor with the number of clips come to all of them.
        stride = next(steps for steps in count(stride % size + 1) if math.gcd(steps, size) == 1)
        ranks = np.arange(min(size, len(peers) * _OWN_SUBSTITUTES + len(batch.clips)))
        walk = self._clips_by_bucket[start + (first % size + ranks * stride) % size]
        own = walk[~np.isin(walk, batch.clips)][peers.index(row) :: len(peers)]
        draws = hash_words(self.seed, _SUBSTITUTE, batch.step, row, np.arange(_MOST_DRAWS))
        return np.concatenate([own, self._clips_by_bucket[start + (draws % np.uint64(size)).astype(np.int64)]])

    def _order_epoch(self, epoch: int) -> _EpochOrder:
        # Reading ahead crosses from one epoch to the next and back.
        if epoch in self._orders:
            self._orders.move_to_end(epoch)
            return self._orders[epoch]
        clip_count = len(self.plan.bucket_of_clip)
        clip_hash = hash_words(self.seed, _CLIP_ORDER, epoch, np.arange(clip_count))
        # Bucket in the upper 8 bits, hash below: one sort does both.
        keys = (self.plan.bucket_of_clip.astype(np.uint64) << np.uint64(56)) | (clip_hash >> np.uint64(8))
        batch_hash = hash_words(self.seed, _BATCH_ORDER, epoch, np.arange(len(self._batch_ends)))
        order = _EpochOrder(
            clips=np.argsort(keys, kind="stable").astype(np.int32),
            batches=np.argsort(batch_hash, kind="stable"),
        )
        self._orders[epoch] = order
        if len(self._orders) > _KEPT_EPOCHS:
            self._orders.popitem(last=False)
        return order


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


Clips = NDArray[np.int32]


def choose_prompt_slices(
    corpus: Corpus, clips: Clips, prompts: Clips, *, seed: int, epoch: int, for_validation: bool
) -> Slices:
    """The parts of prompts that clips hear.

    Args:
        prompts: the clip that each one's prompt is cut from; itself, where it hears a part of itself.
        for_validation: the parts are always the same, instead of drawn anew in each epoch.
    """
    # Of another clip no more than the row has room for, whatever the bucket.
    samples = np.minimum(corpus.samples[clips], corpus.samples[prompts])
    if for_validation:
        return choose_evaluation_slices(samples)
    return draw_slices(samples, seed=seed, epoch=epoch, sample_ids=clips)


class SpeakerPrompts:
    """For each clip another one of the same speaker, or itself where the speaker has no other.

    Args:
        speakers: of a corpus.
        seed: of the run.
        is_fixed: always the same other clip, instead of one drawn anew in each epoch.
    """

    def __init__(self, speakers: NameColumn, *, seed: int, is_fixed: bool = False):
        self._seed = seed
        self._is_fixed = is_fixed
        codes = speakers.codes
        self._by_speaker = np.argsort(codes, kind="stable").astype(np.int32)
        sizes = np.bincount(codes, minlength=len(speakers.names))
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._size, self._first = sizes[codes], firsts[codes]
        self._rank = np.empty(len(codes), np.int64)
        self._rank[self._by_speaker] = np.arange(len(codes))
        self._rank -= self._first

    def choose(self, epoch: int, clips: Clips) -> Clips:
        """The clips whose parts are the prompts of these."""
        others = np.maximum(self._size[clips] - 1, 1)
        steps = np.ones(len(clips), np.int64)
        if not self._is_fixed:
            steps = draw_integers(self._seed, epoch, clips, Purpose.PROMPT_CLIP, 1, others[:, None])[:, 0]
        chosen: Clips = self._by_speaker[self._first[clips] + (self._rank[clips] + steps) % self._size[clips]]
        return chosen


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
    """The order of a run's batches: a pure function of a number that counts them from step 0. Holds no list: any number is found
    without walking.

    The micro-batches of every step come in turn. Behind every `validation_interval`-th step, and behind the last one, comes a
    round of all validation batches. The numbers do not depend on where a run was resumed; the round behind a last step that is
    no multiple of the interval is counted only while that step is the last one.

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
