"""A corpus at a glance: how long its clips are, who speaks, in which language, and what batching them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.config import XTTSConfig
from myxtts.data.buckets import BucketPlan, PaddingWaste, format_plan, plan_shared_buckets
from myxtts.data.corpus import Corpus, NameColumn
from myxtts.data.scan import ScanResult
from myxtts.units import SAMPLE_RATE_HZ

BARS = 16


@dataclass(frozen=True)
class Bar:
    from_s: float
    to_s: float
    clips: int


@dataclass(frozen=True)
class Share:
    name: str
    clips: int
    seconds: float


@dataclass(frozen=True)
class Bucketing:
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


def describe_corpus(corpus: Corpus, train: Corpus, validation: Corpus, config: XTTSConfig) -> Overview:
    """The overview of a corpus that has at least one clip.

    Args:
        train, validation: what a run makes of it; the second may be of another corpus, or empty.
    """
    seconds_N, batch_size = corpus.samples / SAMPLE_RATE_HZ, config.data.batch_size
    parts = [(part.samples, part.tokens) for part in (train, validation) if len(part)]
    sizes = sorted({min(size, len(train)) for size in (max(1, batch_size // 2), batch_size, batch_size * 2)})
    plans = {size: plan_shared_buckets(parts, batch_size=size, layers=config.model.gpt_layers)[0] for size in sizes}
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


BAR_WIDTH = 40
MOST_ROWS = 10


def format_overview(result: ScanResult, overview: Overview, validation: ScanResult | None = None) -> str:
    """The whole report as plain text."""
    most = max(bar.clips for bar in overview.histogram)
    apart = overview.clips - overview.train_clips if validation is None else len(validation.corpus)
    bars = [
        f"{bar.from_s:6.2f} - {bar.to_s:5.2f} s {bar.clips:>7}  {'#' * round(BAR_WIDTH * bar.clips / most)}"
        for bar in overview.histogram
    ]
    blocks = [
        f"Corpus  {result.corpus.root}",
        result.drops.format_table(),
        f"Durations: {overview.shortest_s:.2f} to {overview.longest_s:.2f} s, median {overview.median_s:.2f} s\n"
        + "\n".join(bars),
        _format_shares("speaker", overview.speakers),
        _format_shares("language", overview.languages),
        f"A run trains on {overview.train_clips} clips and validates with {apart}:\n{_format_bucketings(overview.bucketings)}",
        format_plan(overview.plan),
    ]
    if validation is not None:
        blocks += [f"Validation  {validation.corpus.root}", validation.drops.format_table()]
    folders = dict.fromkeys(scan.kept_in for scan in (result, validation) if scan is not None)
    blocks += [
        f"Kept    {folder} (what was found out; deleting it costs time only)"
        if folder
        else "Kept    nowhere: no folder can be written to"
        for folder in folders
    ]
    return "\n\n".join(blocks)


def _format_shares(title: str, shares: Sequence[Share]) -> str:
    width = max([len(title), *(len(share.name) for share in shares[:MOST_ROWS])])
    rows = [f"{title:<{width}}    clips   minutes"]
    rows += [
        f"{share.name or '-':<{width}}  {share.clips:>7}  {share.seconds / 60:>8.1f}" for share in shares[:MOST_ROWS]
    ]
    if len(shares) > MOST_ROWS:
        rows.append(f"and {len(shares) - MOST_ROWS} more")
    return "\n".join(rows)


def _format_bucketings(bucketings: Sequence[Bucketing]) -> str:
    rows = ["batch size  shapes  batches  audio padding  text padding"]
    rows += [
        f"{entry.batch_size:>10}  {entry.shapes:>6}  {entry.batches:>7}  {entry.waste.audio_share:>13.1%}  "
        f"{entry.waste.text_share:>12.1%}"
        for entry in bucketings
    ]
    return "\n".join(rows)
