"""A corpus at a glance: how long its clips are, who speaks, in which language, and what batching them costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.buckets import BucketPlan, PaddingWaste, plan_shared_buckets
from myxtts.data.corpus import Corpus, NameColumn

BARS = 16


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram of durations."""

    from_s: float
    to_s: float
    clips: int


@dataclass(frozen=True)
class Share:
    """A speaker's or a language's part of the corpus."""

    name: str
    clips: int
    seconds: float


@dataclass(frozen=True)
class Bucketing:
    """What a batch size costs in padding."""

    batch_size: int
    shapes: int
    batches: int
    waste: PaddingWaste


@dataclass(frozen=True)
class Overview:
    """What `myxtts data` shows."""

    clips: int
    train_clips: int
    """Of them, those that a run trains on."""
    seconds: float
    shortest_s: float
    median_s: float
    longest_s: float
    histogram: tuple[Bar, ...]
    speakers: tuple[Share, ...]
    languages: tuple[Share, ...]
    bucketings: tuple[Bucketing, ...]
    plan: BucketPlan
    """The shapes of a run with the batch size asked for."""


def describe_corpus(corpus: Corpus, train: Corpus, validation: Corpus, batch_size: int) -> Overview:
    """The overview of a corpus that has at least one clip.

    Args:
        train, validation: what a run makes of it; the second may be of another corpus, or empty.
    """
    seconds_N = corpus.samples / SAMPLE_RATE_HZ
    parts = [(part.samples, part.tokens) for part in (train, validation) if len(part)]
    sizes = sorted({min(size, len(train)) for size in (max(1, batch_size // 2), batch_size, batch_size * 2)})
    plans = {size: plan_shared_buckets(parts, batch_size=size)[0] for size in sizes}
    return Overview(
        clips=len(corpus),
        train_clips=len(train),
        seconds=corpus.total_seconds,
        shortest_s=float(seconds_N.min()),
        median_s=float(np.median(seconds_N)),
        longest_s=float(seconds_N.max()),
        histogram=_count_durations(seconds_N),
        speakers=_share_out(corpus.speaker, seconds_N),
        languages=_share_out(corpus.language, seconds_N),
        bucketings=tuple(
            Bucketing(size, len(plan.buckets), plan.batches_per_epoch, plan.waste) for size, plan in plans.items()
        ),
        plan=plans[min(batch_size, len(train))],
    )


def _count_durations(seconds_N: NDArray[np.float64]) -> tuple[Bar, ...]:
    edges = np.linspace(np.floor(seconds_N.min()), np.floor(seconds_N.max()) + 1.0, BARS + 1)
    counts, _ = np.histogram(seconds_N, edges)
    return tuple(Bar(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True))


def _share_out(column: NameColumn, seconds_N: NDArray[np.float64]) -> tuple[Share, ...]:
    clips = np.bincount(column.codes, minlength=len(column.names)).tolist()
    seconds = np.bincount(column.codes, weights=seconds_N, minlength=len(column.names)).tolist()
    shares = [Share(name, int(n), s) for name, n, s in zip(column.names, clips, seconds, strict=True)]
    return tuple(sorted(shares, key=lambda share: -share.clips))
