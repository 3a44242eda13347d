"""Which clips make which batch, in the place of which others, and whose voice they hear: pure functions of (seed, epoch, global step).

A *global batch* is what one update trains on: one or more *micro-batches* (gradient accumulation), each of one bucket and so of
one shape. Ranks share every micro-batch by rows. An epoch sees every clip exactly once (`buckets`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.augment import Purpose, Slices, choose_evaluation_slices, draw_integers, draw_slices
from myxtts.data.buckets import Bucket, BucketPlan
from myxtts.data.corpus import Corpus, NameColumn
from myxtts.hashing import hash_words

Clips = NDArray[np.int32]
"""Numbers of clips in a corpus."""

EMPTY_ROW = -1
"""Stands in a batch for a row without a clip: zeros that count nothing in the loss."""

# What a hash is for: streams of different purpose must not repeat each other.
_CLIP_ORDER, _BATCH_ORDER, _SUBSTITUTE, _SHARED_PROMPT = 1, 2, 3, 4

_KEPT_EPOCHS = 2
"""Reading ahead crosses from one epoch to the next and back."""
_MOST_DRAWS = 64


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Clips that go through the network together, all padded to one shape."""

    bucket: Bucket
    bucket_number: int
    first_row: int
    """Its first row's number in the global batch."""
    clips: Clips
    """Clip numbers by row; `EMPTY_ROW` where there is none."""
    prompts: Clips | None = None
    """The clips whose parts are these clips' voice prompts; None where each hears a part of itself."""
    voices: NDArray[np.int32] | None = None
    """Which of `prompts` each row hears, where rows share them; None where each has its own."""

    def slice_rows(self, part: int, parts: int) -> MicroBatch:
        """One of `parts` equal slices: for a rank, or for smaller micro-batches. Short slices get empty rows."""
        rows = -(-len(self.clips) // parts)
        own = self.clips[part * rows : (part + 1) * rows]
        clips = np.pad(own, (0, rows - len(own)), constant_values=EMPTY_ROW)
        first_row = self.first_row + part * rows
        return replace(self, bucket=replace(self.bucket, rows=rows), first_row=first_row, clips=clips)


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """Everything one update trains on."""

    step: int
    epoch: int
    micro_batches: tuple[MicroBatch, ...]

    @property
    def clips(self) -> Clips:
        rows = np.concatenate([micro_batch.clips for micro_batch in self.micro_batches])
        clips: Clips = rows[rows != EMPTY_ROW]
        return clips

    @property
    def prompts(self) -> Clips | None:
        """The clips that `clips` hear as their voice prompts; None where each hears a part of itself, or nothing."""
        rows = [
            np.where(
                each.clips == EMPTY_ROW, EMPTY_ROW, each.prompts if each.voices is None else each.prompts[each.voices]
            )
            for each in self.micro_batches
            if each.prompts is not None
        ]
        heard = np.concatenate([*rows, np.zeros(0, np.int32)])
        return heard[heard != EMPTY_ROW] if rows else None


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


@dataclass(eq=False)
class IndexSampler:
    """Gives the global batch of any step, of `accumulation` micro-batches. The order of calls does not matter."""

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
        self._order_epoch = lru_cache(_KEPT_EPOCHS)(self._make_order)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.plan.batches_per_epoch // self.accumulation)

    def make_batch(self, step: int) -> GlobalBatch:
        """The global batch of a step, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        epoch_clips, epoch_batches = self._order_epoch(epoch)
        micro_batches: list[MicroBatch] = []
        first_row = 0
        for batch in epoch_batches[position * self.accumulation : (position + 1) * self.accumulation]:
            number = int(self._bucket_of_batch[batch])
            bucket = self.plan.buckets[number]
            own = epoch_clips[self._batch_starts[batch] : self._batch_ends[batch]]
            clips = np.pad(own, (0, bucket.rows - len(own)), constant_values=EMPTY_ROW)
            micro_batches.append(MicroBatch(bucket, number, first_row, clips))
            first_row += bucket.rows
        return GlobalBatch(step, epoch, tuple(micro_batches))

    def draw_substitutes(self, step: int, row: int, bucket_number: int) -> Clips:
        """Clips that fit a bucket, in the order in which they may stand in for one of a row that cannot be read."""
        end = int(self._bucket_ends[bucket_number])
        start = int(self._bucket_ends[bucket_number - 1]) if bucket_number else 0
        if start == end:
            # All its clips come from shorter buckets.
            start = 0
        draws = hash_words(self.seed, _SUBSTITUTE, step, row, np.arange(_MOST_DRAWS))
        return self._clips_by_bucket[start + (draws % np.uint64(end - start)).astype(np.int64)]

    def _make_order(self, epoch: int) -> tuple[Clips, NDArray[np.int64]]:
        """All clips, by bucket and within it by hash; and the order in which batches, pieces of these, are trained on."""
        clip_hash = hash_words(self.seed, _CLIP_ORDER, epoch, np.arange(len(self.plan.bucket_of_clip)))
        # Bucket in the upper 8 bits, hash below: one sort does both.
        keys = (self.plan.bucket_of_clip.astype(np.uint64) << np.uint64(56)) | (clip_hash >> np.uint64(8))
        batch_hash = hash_words(self.seed, _BATCH_ORDER, epoch, np.arange(len(self._batch_ends)))
        return np.argsort(keys, kind="stable").astype(np.int32), np.argsort(batch_hash, kind="stable")


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
    return find_position(sampler, number_position(sampler, position) + 1)


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
    """The row's number in the global batch, as `MicroBatch.first_row` counts."""
    clip: int
    """Of the row; what failed may be the clip whose part it was to hear as its voice prompt."""


class ReplacementJournal:
    """The failures of a run so far."""

    def __init__(self, failures: Iterable[Failure] = ()):
        self._steps: dict[int, set[Failure]] = {}
        for failure in failures:
            self.record(failure)

    def record(self, failure: Failure) -> None:
        """Note a failure. Noting it twice changes nothing."""
        self._steps.setdefault(failure.step, set()).add(failure)

    def list_failures(self, first_step: int = 0) -> list[Failure]:
        return [failure for step in sorted(self._steps) if step >= first_step for failure in self.list_step(step)]

    def list_step(self, step: int) -> list[Failure]:
        return sorted(self._steps.get(step, ()))


def replace_failed(batch: GlobalBatch, sampler: IndexSampler, journal: ReplacementJournal) -> GlobalBatch:
    """The batch with every clip that failed at its place replaced."""
    failures = journal.list_step(batch.step)
    if not failures:
        return batch
    present = set(batch.clips.tolist())
    replaced: list[MicroBatch] = []
    for micro_batch in batch.micro_batches:
        clips = micro_batch.clips.copy()
        for row, clip in enumerate(clips.tolist(), start=micro_batch.first_row):
            failed = {failure.clip for failure in failures if failure.row == row}
            if clip in failed:
                substitutes = sampler.draw_substitutes(batch.step, row, micro_batch.bucket_number).tolist()
                # Whatever other rows failed at: workers that share a batch do not know of each other's failures.
                # A corpus of a handful of clips: better an empty row than one of this batch twice.
                fitting = (each for each in substitutes if each not in present | failed)
                clips[row - micro_batch.first_row] = next(fitting, EMPTY_ROW)
        replaced.append(replace(micro_batch, clips=clips))
    return replace(batch, micro_batches=tuple(replaced))


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


KEPT_PROMPTS = 16
"""Clips of a speaker that the others hear, where prompts are shared: few, so that what is made of them can be kept."""


class PromptSharing(NamedTuple):
    """How the rows of a speaker in a batch share a voice prompt, the beginning of a clip."""

    voices: int
    """The most speakers that there are."""
    samples: int
    """Of a prompt."""
    kept: Container[int] = ()
    """Clips that need not be read for it."""


class SharedPrompts:
    """For each speaker in a batch one of its longest clips, drawn anew for every batch.

    Args:
        seed: of the run.
        voices: prompts of a batch, if it has as many rows.
    """

    def __init__(self, corpus: Corpus, *, seed: int, voices: int):
        self._seed, self._voices = seed, voices
        self._speakers = corpus.speaker.codes
        self._by_speaker = np.lexsort((-corpus.samples.astype(np.int64), self._speakers)).astype(np.int32)
        self._firsts = np.cumsum([0, *np.bincount(self._speakers)])

    def choose(
        self, step: int, number: int, clips: Clips, taken: Collection[int], failed: Collection[int]
    ) -> tuple[Clips, NDArray[np.int32]]:
        """The clips that are heard, and which of them each row hears.

        Args:
            number: of the micro-batch in its step.
            taken: clips that had better not hear themselves.
            failed: clips that cannot be read.
        """
        is_clip = clips != EMPTY_ROW
        heard = np.full(min(len(clips), self._voices), EMPTY_ROW, np.int32)
        voices = np.zeros(len(clips), np.int32)
        speakers, voices[is_clip] = np.unique(self._speakers[clips[is_clip]], return_inverse=True)
        for place, speaker in enumerate(speakers.tolist()):
            first, end = self._firsts[speaker : speaker + 2].tolist()
            kept = self._by_speaker[first : min(end, first + KEPT_PROMPTS)]
            draws = hash_words(self._seed, _SHARED_PROMPT, step, number, speaker, np.arange(len(kept)))
            readable = [clip for clip in kept[np.argsort(draws, kind="stable")].tolist() if clip not in failed]
            others = (clip for clip in readable if clip not in taken)
            heard[place] = next(others, readable[0] if readable else EMPTY_ROW)
        return heard, voices


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
    """The order of a run's batches: a pure function of a number that counts them from step 0, wherever the run was resumed.

    The micro-batches of every step come in turn. Behind every `validation_interval`-th step, and behind the last one, comes a
    round of all validation batches; that behind a last step that is no multiple of the interval only while it is the last one.

    Args:
        validation_batches: in a round; 0 means that there are no rounds.
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
