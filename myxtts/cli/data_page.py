"""A corpus as a self-contained HTML page: no script, no address, pictures as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from myxtts.data.overview import Bar, Overview, Share
from myxtts.data.scan import ScanResult
from myxtts.monitoring.html_table import draw_table

WIDTH, HEIGHT, MARGIN = 720, 240, 36

STYLE = """
:root { color-scheme: light dark; --bar: #3b6fb6; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: start; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: end; font-variant-numeric: tabular-nums; }
td.files { overflow-wrap: anywhere; } svg { width: 100%; height: auto; } rect { fill: var(--bar); } text { font-size: 12px; fill: currentColor; }
"""


def format_page(result: ScanResult, overview: Overview, validation: ScanResult | None = None) -> str:
    """The page of a scanned corpus.

    Args:
        validation: of `--val-data`, where it is given.
    """
    name = escape(result.corpus.root.name)
    parts = [
        f"<h1>{name}</h1>",
        f"<p>{overview.clips} clips, {overview.seconds / 60:.1f} minutes; "
        f"{overview.shortest_s:.2f} to {overview.longest_s:.2f} s, median {overview.median_s:.2f} s. "
        f"{len(result.drops.drops)} of {result.drops.lines} lines set aside.</p>",
        "<h2>Durations</h2>",
        _draw_histogram(overview.histogram),
        "<h2>Speakers</h2>",
        _draw_shares("Speaker", overview.speakers),
        "<h2>Languages</h2>",
        _draw_shares("Language", overview.languages),
        f"<h2>Batches</h2><p>A run trains on {overview.train_clips} of the clips.</p>",
        _draw_bucketings(overview),
        "<h2>Set aside</h2>",
        _draw_drops(result),
    ]
    if validation is not None:
        clips, minutes = len(validation.corpus), validation.corpus.total_seconds / 60
        parts += [
            "<h2>Validation</h2>",
            f"<p>{clips} clips, {minutes:.1f} minutes. Set aside:</p>",
            _draw_drops(validation),
        ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _draw_histogram(bars: Sequence[Bar]) -> str:
    most = max(bar.clips for bar in bars)
    step = (WIDTH - 2 * MARGIN) / len(bars)
    shapes: list[str] = []
    for number, bar in enumerate(bars):
        height = (HEIGHT - 2 * MARGIN) * bar.clips / most
        left, top = MARGIN + number * step, HEIGHT - MARGIN - height
        shapes.append(
            f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{step - 2:.1f}" height="{height:.1f}">'
            f"<title>{bar.from_s:.2f} to {bar.to_s:.2f} s: {bar.clips} clips</title></rect>"
        )
        if bar.clips:
            shapes.append(f'<text x="{left + step / 2:.1f}" y="{top - 4:.1f}" text-anchor="middle">{bar.clips}</text>')
        if number % 2 == 0:
            shapes.append(f'<text x="{left:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{bar.from_s:g}</text>')
    shapes.append(
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{bars[-1].to_s:g} s</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Histogram of durations">{"".join(shapes)}</svg>'


def _draw_shares(title: str, shares: Sequence[Share]) -> str:
    rows = [(escape(share.name or "-"), f"{share.clips}", f"{share.seconds / 60:.1f}") for share in shares]
    return draw_table((title, "Clips", "Minutes"), rows)


def _draw_bucketings(overview: Overview) -> str:
    rows = [
        (f"{entry.batch_size}", f"{entry.shapes}", f"{entry.batches}", f"{entry.waste.audio_share:.1%}", f"{entry.waste.text_share:.1%}")
        for entry in overview.bucketings
    ]  # fmt: skip
    return draw_table(("Batch size", "Shapes", "Batches per epoch", "Audio padding", "Text padding"), rows)


def _draw_drops(result: ScanResult) -> str:
    groups = result.drops.group_by_reason()
    if not groups:
        return "<p>Nothing.</p>"
    rows = "".join(
        f'<tr><td>{reason}</td><td class="number">{len(drops)}</td>'
        f'<td class="files">{escape(", ".join(drop.file for drop in drops), quote=False)}</td></tr>'
        for reason, drops in groups.items()
    )
    return f'<table><tr><th>Reason</th><th class="number">Clips</th><th>Files</th></tr>{rows}</table>'
