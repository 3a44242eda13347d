"""A profile as a page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.profile_facts import NO_BOTTLENECK, BatchTimes, Part, Profile, Verdict
from myxtts.monitoring.words import format_step_time
from myxtts.reports import charts
from myxtts.reports.pages import format_size, render_page

SHOWN_BATCHES = 8
"""In the timeline: more would be too narrow to see."""
LANES = ("read", "prepare", "transfer", "train", "waits")


def format_page(profile: Profile, verdict: Verdict) -> str:
    """The page."""
    shown = _choose_shown(profile.real)
    parts = [charts.BarPart(part, cost.share, number) for number, (part, cost) in enumerate(profile.costs.items())]
    return render_page(
        "profile.html",
        title=f"Profile, {profile.run.mode} mode",
        profile=profile,
        verdict=verdict,
        no_bottleneck=NO_BOTTLENECK,
        shown=shown,
        breakdown=charts.draw_bars([("step", parts)]),
        timeline=_draw_timeline(profile.real, shown),
        step_times=charts.draw_histogram([batch.step_s for batch in profile.real], format_step_time),
        waits=_draw_waits(profile.real),
        cards=summarise_cards(profile.samples),
        host=summarise_host(profile.samples),
        memory=_draw_memory(profile),
    )


def _choose_shown(batches: Sequence[BatchTimes]) -> Sequence[BatchTimes]:
    """Steps in the middle of the run, or before it: while they are trained on, batches that were measured are prepared."""
    last_prepared_s = batches[-1].spans.prepare.ended_s
    firsts = range(max(0, (len(batches) - SHOWN_BATCHES) // 2), 0, -1)
    first = next((n for n in firsts if batches[n : n + SHOWN_BATCHES][-1].train.ended_s <= last_prepared_s), 0)
    return batches[first : first + SHOWN_BATCHES]


def _draw_timeline(batches: Sequence[BatchTimes], shown: Sequence[BatchTimes]) -> Markup:
    """The time of some steps of the run. What is read and prepared meanwhile is of later batches."""
    spans = [(str(batch.number), (*batch.spans, batch.train, batch.wait)) for batch in batches]
    lanes = [
        (name, [(batch, each[number].began_s, each[number].ended_s) for batch, each in spans])
        for number, name in enumerate(LANES)
    ]
    return charts.draw_timeline(lanes, shown[0].wait.began_s, shown[-1].train.ended_s)


def _draw_waits(batches: Sequence[BatchTimes]) -> Markup:
    split = [(float(batch.number), batch.split_step()) for batch in batches]
    series = [
        charts.Series(part, [(number, parts[part] * 1000) for number, parts in split])
        for part in (Part.LOAD, Part.PREPARE, Part.TRANSFER, Part.TRAIN)
    ]
    return charts.draw_lines(series, "batch", lambda ms: f"{ms:.4g} ms", from_zero=True)


def _draw_memory(profile: Profile) -> Markup:
    if len(profile.samples) < 2:
        return Markup()
    origin_s = profile.samples[0].time_s
    curves: dict[str, list[charts.Point]] = {}
    for sample in profile.samples:
        sizes: dict[str, float | None] = {"host, all processes": sample.host.rss_bytes / 2**30}
        sizes |= {
            f"GPU {card.physical_id}": None if card.used_mib is None else card.used_mib / 1024 for card in sample.cards
        }
        for name, size in sizes.items():
            curves.setdefault(name, []).append((sample.time_s - origin_s, size))
    series = [charts.Series(name, points) for name, points in curves.items()]
    return charts.draw_lines(series, "seconds", format_size, from_zero=True)
