"""A corpus in the terminal, within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.data.buckets import format_plan
from myxtts.data.drops import DropReason
from myxtts.data.overview import Bucketing, Overview, Share
from myxtts.data.scan import ScanResult

BAR_WIDTH = 40
MOST_ROWS = 10


def format_overview(result: ScanResult, overview: Overview, validation: ScanResult | None = None) -> str:
    """The whole report as plain text.

    Args:
        validation: of `--val-data`, where it is given.
    """
    linked = result.linked - sum(drop.reason is DropReason.SYMLINK for drop in result.drops.drops)
    links = f"\n{linked} clips lie behind symbolic links, which are followed." if linked else ""
    most = max(bar.clips for bar in overview.histogram)
    apart = overview.clips - overview.train_clips if validation is None else len(validation.corpus)
    bars = [
        f"{bar.from_s:6.2f} - {bar.to_s:5.2f} s {bar.clips:>7}  {'#' * round(BAR_WIDTH * bar.clips / most)}"
        for bar in overview.histogram
    ]
    blocks = [
        f"Corpus  {result.corpus.root}",
        result.drops.format_table() + links,
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
