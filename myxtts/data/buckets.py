"""The finite set of batch shapes of a corpus, chosen so that little of a batch is padding.

Clips are grouped by length; every group (bucket) has one shape, which follows from the clips' lengths alone. Within an epoch, clips
that do not fill a batch of their bucket move on to the next longer one, where they fit with more padding. So exactly one batch of an
epoch can be short; its missing rows are empty and count nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.errors import CorpusError
from myxtts.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE

MAX_BUCKETS = 16
FEW_BUCKETS = 5
"""Of a model with so many layers that XLA compiles each shape for minutes: some padding costs less."""
MANY_LAYERS = 24
ENOUGH_WASTE = 0.08
"""Fewer shapes mean fewer traces: the smallest number of buckets that wastes at most this share is taken."""
NOT_WORTH_SHAPES = 0.02
"""Small corpora never get there: then the fewest shapes that compute at most this much more than the best."""


ClipLengths = tuple[NDArray[np.integer], NDArray[np.integer]]
"""Lengths of the same clips in samples and in text tokens."""

SAMPLES_STEP = 4 * SAMPLES_PER_CODE
"""Bucket lengths are multiples of this, 0.19 s at 22.05 kHz: rounding up to it costs about 1 %."""

TOKENS_STEP = 8

_WORTH_A_SHAPE = 0.01
"""A last bucket for the longest texts must save this share of the computed positions."""

_USUAL_SHARE = 0.95
"""A bucket's text length is expected to hold this share of its clips."""


class LengthTable(NamedTuple):
    """How many clips there are of each pair of rounded-up lengths."""

    samples: NDArray[np.int64]
    """The different audio lengths, rising, in samples."""
    tokens: NDArray[np.int64]
    """The different text lengths, rising, in tokens."""
    counts: NDArray[np.int64]
    """Clips by audio length and text length."""


def tabulate_lengths(samples_N: NDArray[np.integer], tokens_N: NDArray[np.integer]) -> LengthTable:
    """The lengths of all clips, rounded up to the steps bucket shapes are made of."""
    samples, row = np.unique(_round_up(samples_N, SAMPLES_STEP), return_inverse=True)
    tokens, column = np.unique(_round_up(tokens_N, TOKENS_STEP), return_inverse=True)
    counts = np.bincount(row * len(tokens) + column, minlength=len(samples) * len(tokens))
    return LengthTable(samples, tokens, counts.reshape(len(samples), len(tokens)))


def _round_up(lengths: NDArray[np.integer], step: int) -> NDArray[np.int64]:
    return np.maximum(1, -(-lengths.astype(np.int64) // step)) * step


def list_sample_edges(table: LengthTable, most: int) -> list[NDArray[np.int64]]:
    """For 1, 2, ... `most` buckets (or as many as there are lengths), the audio lengths that pad these clips least.

    Exact: dynamic programming over the last clip length that each bucket takes.
    """
    lengths, clips = table.samples, table.counts.sum(axis=1)
    until = np.concatenate([[0], np.cumsum(clips)])
    best = until[1:] * lengths
    starts: list[NDArray[np.intp]] = []
    choices = [lengths[-1:]]
    for count in range(2, min(most, len(lengths)) + 1):
        previous, best = best, best.copy()
        start = np.zeros(len(lengths), dtype=np.intp)
        for last in range(count - 1, len(lengths)):
            costs = previous[:last] + (until[last + 1] - until[1 : last + 1]) * lengths[last]
            start[last] = np.argmin(costs)
            best[last] = costs[start[last]]
        starts.append(start)
        edges = [len(lengths) - 1]
        for start in reversed(starts):
            edges.append(int(start[edges[-1]]))
        choices.append(lengths[edges[::-1]])
    return choices


def choose_token_edges(
    table: LengthTable, sample_edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text length for each audio length, and perhaps one more bucket for the longest texts.

    Text lengths rise with the audio's. A clip whose text is too long for its bucket moves to a longer one: that is
    cheaper than padding every text of the bucket to the longest. Gives audio and text lengths, of equal number.
    """
    longest = int(table.tokens[-1])
    total = table.counts.sum(axis=1) @ table.samples / SAMPLES_PER_CODE + table.counts.sum(axis=0) @ table.tokens
    audio_positions = sample_edges / SAMPLES_PER_CODE
    own = np.zeros((len(sample_edges), len(table.tokens)), dtype=np.int64)
    np.add.at(own, np.searchsorted(sample_edges, table.samples), table.counts)
    clips = np.zeros(len(table.tokens), dtype=np.int64)
    token_edges = [int(table.tokens[0])]
    for k, positions in enumerate(audio_positions):
        clips = np.where(table.tokens > token_edges[-1], clips, 0) + own[k]
        is_last = k + 1 == len(audio_positions)
        moving = positions + longest if is_last else audio_positions[k + 1] + _guess_padding(table.tokens, own[k + 1])
        moved = clips * moving
        costs = np.cumsum(clips) * (positions + table.tokens) + (moved.sum() - np.cumsum(moved))
        costs[table.tokens < token_edges[-1]] = np.inf
        choice = int(np.argmin(costs))
        if is_last and costs[-1] - costs[choice] < _WORTH_A_SHAPE * total:
            choice = len(table.tokens) - 1
        token_edges.append(int(table.tokens[choice]))
    if token_edges[-1] < longest:
        sample_edges = np.append(sample_edges, sample_edges[-1])
        token_edges.append(longest)
    return sample_edges, np.array(token_edges[1:], dtype=np.int64)


def _guess_padding(tokens: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a text of each length will be padded to in a bucket with these clips, before its text length is chosen."""
    usual = tokens[np.searchsorted(np.cumsum(own), _USUAL_SHARE * own.sum())]
    padded: NDArray[np.int64] = np.maximum(tokens, usual)
    return padded


@dataclass(frozen=True)
class Bucket:
    """The shape of a batch: `rows` clips of up to `samples` samples and `tokens` text tokens."""

    rows: int
    samples: int
    tokens: int


@dataclass(frozen=True)
class PaddingWaste:
    """What one epoch computes, and how much of it is padding (empty rows included)."""

    samples: int
    padded_samples: int
    tokens: int
    padded_tokens: int

    @property
    def audio_share(self) -> float:
        """Of padding, as the other shares, 0 to 1."""
        return 1 - self.samples / self.padded_samples

    @property
    def text_share(self) -> float:
        return 1 - self.tokens / self.padded_tokens

    @property
    def sequence_share(self) -> float:
        """In the model's sequence of audio codes and text tokens."""
        computed = self.padded_samples / SAMPLES_PER_CODE + self.padded_tokens
        return 1 - (self.samples / SAMPLES_PER_CODE + self.tokens) / computed


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Which shape every clip belongs to. Buckets are ordered: each holds whatever the ones before it hold."""

    buckets: tuple[Bucket, ...]
    bucket_of_clip: NDArray[np.uint8]
    batches_of_bucket: tuple[int, ...]
    """Batches of each bucket in one epoch. Of those of the last bucket that has any, one may be short."""
    waste: PaddingWaste

    @cached_property
    def batches_per_epoch(self) -> int:
        return sum(self.batches_of_bucket)


def plan_buckets(
    samples_N: NDArray[np.integer],
    tokens_N: NDArray[np.integer],
    *,
    batch_size: int,
    most: int = MAX_BUCKETS,
) -> BucketPlan:
    """The shapes for clips of these lengths, `most` of them at most.

    Args:
        batch_size: clips in a batch of the bucket that holds the corpus's median clip. Longer buckets get fewer, so
            that no batch holds more samples than that one (but at least one clip); shorter ones get as many.
    """
    if len(samples_N) == 0:
        raise CorpusError("There is no clip to make batches of. The drop report says why each was set aside.")
    table = tabulate_lengths(samples_N, tokens_N)
    samples = int(np.sum(samples_N, dtype=np.int64))
    choices: list[tuple[int, list[Bucket]]] = []
    for sample_edges in list_sample_edges(table, most):
        buckets, padded = _shape_buckets(table, sample_edges, batch_size)
        if samples >= (1 - ENOUGH_WASTE) * padded:
            return assign_buckets(buckets, samples_N, tokens_N)
        choices.append((padded, buckets))
    least = min(padded for padded, _ in choices)
    good = [buckets for padded, buckets in choices if padded <= (1 + NOT_WORTH_SHAPES) * least]
    return assign_buckets(min(good, key=len), samples_N, tokens_N)


def assign_buckets(
    buckets: Sequence[Bucket], samples_N: NDArray[np.integer], tokens_N: NDArray[np.integer]
) -> BucketPlan:
    """The plan of clips that are batched in given shapes, such as those of a larger corpus that they are part of.

    Buckets may get no batch. Clips that do not fill a batch move on only as far as the corpus's own longest clips.
    The last bucket holds every clip.
    """
    bucket_of_clip = np.maximum(
        np.searchsorted([bucket.samples for bucket in buckets], samples_N),
        np.searchsorted([bucket.tokens for bucket in buckets], tokens_N),
    )
    members = np.bincount(bucket_of_clip, minlength=len(buckets))
    assert len(members) == len(buckets), "the last bucket holds every clip"
    batches = _count_batches(buckets, members)
    padded_samples, padded_tokens = _sum_padded(buckets, batches)
    samples, tokens = (int(np.sum(lengths, dtype=np.int64)) for lengths in (samples_N, tokens_N))
    waste = PaddingWaste(samples, padded_samples, tokens, padded_tokens)
    return BucketPlan(tuple(buckets), bucket_of_clip.astype(np.uint8), tuple(batches), waste)


def plan_shared_buckets(parts: Sequence[ClipLengths], *, batch_size: int, layers: int = 0) -> list[BucketPlan]:
    """A plan for each part of a corpus, such as training and validation, all with the same buckets.

    The shapes follow from all clips together, so each is traced once whichever part asks for it first.

    Args:
        parts: their clips' lengths in samples and in tokens, at least one clip each; what is trained on first.
        batch_size: as for `plan_buckets`, but never more than the clips there are to train on: rows beyond them would be
            computed for nothing.
        layers: of the model. Whether XLA is used says nothing here: a run may go on where it is not.
    """
    most = FEW_BUCKETS if layers >= MANY_LAYERS else MAX_BUCKETS
    samples_N, tokens_N = (np.concatenate(lengths) for lengths in zip(*parts, strict=True))
    buckets = plan_buckets(samples_N, tokens_N, batch_size=min(batch_size, len(parts[0][0])), most=most).buckets
    buckets = _even_out(assign_buckets(buckets, *parts[0]))
    plans = [assign_buckets(buckets, *part) for part in parts]
    # Enough clips for a batch may be too few in each part. They all move on then, so their bucket is no shape at all.
    is_used = np.any([plan.batches_of_bucket for plan in plans], axis=0)
    used = [bucket for bucket, is_kept in zip(buckets, is_used, strict=True) if is_kept]
    return [assign_buckets(used, *part) for part in parts]


def _even_out(plan: BucketPlan) -> tuple[Bucket, ...]:
    """The buckets of a plan; the last that has batches gets no more rows than its clips fill, shared out among as many batches."""
    last = int(np.flatnonzero(plan.batches_of_bucket)[-1])
    before = sum(plan.batches_of_bucket[number] * plan.buckets[number].rows for number in range(last))
    rows = -(-(len(plan.bucket_of_clip) - before) // plan.batches_of_bucket[last])
    return (*plan.buckets[:last], replace(plan.buckets[last], rows=rows), *plan.buckets[last + 1 :])


def _sum_padded(buckets: Sequence[Bucket], batches: Sequence[int]) -> tuple[int, int]:
    """Samples and tokens of an epoch with its padding."""
    rows = [(count * bucket.rows, bucket) for count, bucket in zip(batches, buckets, strict=True)]
    return sum(n * bucket.samples for n, bucket in rows), sum(n * bucket.tokens for n, bucket in rows)


def _shape_buckets(table: LengthTable, sample_edges: NDArray[np.int64], batch_size: int) -> tuple[list[Bucket], int]:
    """Buckets that end there, and the samples of an epoch with its padding."""
    clips_until = np.cumsum(table.counts.sum(axis=1))
    median = table.samples[np.searchsorted(clips_until, (clips_until[-1] + 1) // 2)]
    most_samples = batch_size * int(sample_edges[np.searchsorted(sample_edges, median)])
    sample_edges, token_edges = choose_token_edges(table, sample_edges)
    buckets = [
        Bucket(min(batch_size, max(1, most_samples // samples)), samples, tokens)
        for samples, tokens in zip(sample_edges.tolist(), token_edges.tolist(), strict=True)
    ]
    bucket_of_cell = np.maximum(
        np.searchsorted(sample_edges, table.samples)[:, None], np.searchsorted(token_edges, table.tokens)[None, :]
    )
    members = np.bincount(bucket_of_cell.ravel(), weights=table.counts.ravel(), minlength=len(buckets)).astype(np.int64)
    batches = _count_batches(buckets, members)
    # A bucket whose clips all move on is no shape at all.
    used = [bucket for bucket, count in zip(buckets, batches, strict=True) if count]
    return used, _sum_padded(buckets, batches)[0]


def _count_batches(buckets: Sequence[Bucket], members: NDArray[np.integer]) -> list[int]:
    batches = [0] * len(buckets)
    left_over = 0
    longest = int(np.flatnonzero(members)[-1])
    for number in range(longest + 1):
        batches[number], left_over = divmod(left_over + int(members[number]), buckets[number].rows)
    if left_over:
        batches[longest] += 1
    return batches


def format_plan(plan: BucketPlan) -> str:
    lines = ["bucket  clips/batch   up to s    samples  tokens  batches/epoch"]
    for number, (bucket, batches) in enumerate(zip(plan.buckets, plan.batches_of_bucket, strict=True), start=1):
        lines.append(
            f"{number:>6}  {bucket.rows:>11}  {bucket.samples / SAMPLE_RATE_HZ:>8.2f}  {bucket.samples:>9}  "
            f"{bucket.tokens:>6}  {batches:>13}"
        )
    waste, shapes, total = plan.waste, len(plan.buckets), plan.batches_per_epoch
    lines.append(
        f"{shapes} shape{'s' * (shapes != 1)}, {total} batch{'es' * (total != 1)} per epoch; padding: "
        f"{waste.audio_share:.1%} of the audio, {waste.text_share:.1%} of the text, {waste.sequence_share:.1%} of the sequence."
    )
    return "\n".join(lines)
