"""A profile as a self-contained HTML page: no script, no address, pictures as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from myxtts.monitoring import svg
from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.html_table import draw_table, draw_tiles
from myxtts.monitoring.page_style import STYLE
from myxtts.monitoring.profile_facts import NO_BOTTLENECK, BatchTimes, Part, Profile, Verdict
from myxtts.monitoring.timeline_svg import Bar, Lane, draw_timeline
from myxtts.monitoring.words import format_bytes, format_share, format_step_time
from myxtts.pipeline.batch_spans import Span

SHOWN_BATCHES = 8
"""In the timeline: more would be too narrow to see."""
COLOURS = {part: number for number, part in enumerate(Part)}


def format_page(profile: Profile, verdict: Verdict) -> str:
    """The page."""
    run = profile.run
    title = f"Profile, {run.mode} mode"
    sections = [
        ("Timing breakdown", _draw_breakdown(profile)),
        ("Stages, batch by batch", _draw_timeline(profile)),
        ("Step times", _draw_step_times(profile)),
        ("Who waits", _draw_waits(profile)),
        ("Three runs", _draw_runs(profile)),
        ("Devices", _draw_devices(profile)),
        ("Memory", _draw_memory(profile)),
    ]
    facts = [run.model, run.corpus, f"{run.batch_size} clips per batch", *run.notes]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(run.roles)}"
        f"{' (rehearsal on logical CPU devices)' if run.is_rehearsal else ''}. {escape('; '.join(facts))}</p>",
        *_draw_verdict(profile, verdict),
        _draw_tiles(profile),
        *(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _draw_verdict(profile: Profile, verdict: Verdict) -> Iterator[str]:
    if verdict.is_balanced:
        text = f"{NO_BOTTLENECK}. Training utilization: {format_share(profile.training_share)}"
        yield f'<p class="verdict">{escape(text)}</p>'
        return
    yield f'<p class="verdict">Limited by {escape(verdict.limit)}.</p>'
    for rule in verdict.rules:
        advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in rule.advice)
        yield f'<p class="verdict"><b>{escape(rule.title)}</b>: {escape(rule.evidence)}.</p><ul>{advice}</ul>'


def _draw_tiles(profile: Profile) -> str:
    times, speed_up = profile.times, profile.speed_up
    tiles = [
        ("training", format_share(profile.training_share), "of a step's time"),
        ("step", format_step_time(times.p50_s), f"p95 {format_step_time(times.p95_s)}, variation {format_share(times.variation)}"),
        ("headspace", format_share(profile.headspace), "a faster pipeline could gain no more"),
        ("efficiency", f"{profile.efficiency:.2f}", "1.00 is the limit"),
        ("speed-up", f"{speed_up.reached:.2f}x", f"two devices: at most {speed_up.bound:.2f}x"),
        ("data device", format_share(profile.data_share), "busy" if profile.run.has_two_devices else "the same device"),
    ]  # fmt: skip
    return draw_tiles(tiles)


def _draw_breakdown(profile: Profile) -> str:
    parts = [svg.Part(part, cost.share, COLOURS[part]) for part, cost in profile.costs.items()]
    rows = [
        (part, *map(_format_ms, (cost.own_s, cost.own_std_s, cost.step_s)), format_share(cost.share))
        for part, cost in profile.costs.items()
    ]
    times = profile.times
    rows.append(("Total", *map(_format_ms, (times.mean_s, times.std_s or 0.0, times.mean_s)), format_share(1.0)))
    return svg.draw_bars([("step", parts)]) + draw_table(("", "Own time", "+-", "Waited for", "Of a step"), rows)


def _draw_timeline(profile: Profile) -> str:
    """The time of some steps of the run. What is read and prepared meanwhile is of later batches."""
    shown = _choose_shown(profile.real)
    names = ("read", "prepare", "transfer", "train", "waits")
    lanes = [
        Lane(name, [Bar(_list_spans(batch)[number], str(batch.number)) for batch in profile.real], number)
        for number, name in enumerate(names)
    ]
    return draw_timeline(lanes, Span(shown[0].wait.began_s, shown[-1].train.ended_s)) + (
        f"<p>While batches {shown[0].number} to {shown[-1].number} are trained on. A number is a batch: follow it from row to "
        "row. The whole run is in the trace (<code>--trace</code>).</p>"
    )


def _choose_shown(batches: Sequence[BatchTimes]) -> Sequence[BatchTimes]:
    """Steps in the middle of the run, or before it: while they are trained on, batches that were measured are prepared."""
    last_prepared_s = batches[-1].spans.prepare.ended_s
    firsts = range(max(0, (len(batches) - SHOWN_BATCHES) // 2), 0, -1)
    first = next((n for n in firsts if batches[n : n + SHOWN_BATCHES][-1].train.ended_s <= last_prepared_s), 0)
    return batches[first : first + SHOWN_BATCHES]


def _list_spans(batch: BatchTimes) -> tuple[Span, ...]:
    return (*batch.spans, batch.train, batch.wait)


def _draw_step_times(profile: Profile) -> str:
    times = profile.times
    return svg.draw_histogram([batch.step_s for batch in profile.real], format_step_time) + (
        f"<p>{times.steps} batches, {times.left_out} left out (filling up, tracing). Mean {format_step_time(times.mean_s)}, "
        f"from {format_step_time(times.min_s)} to {format_step_time(times.max_s)}.</p>"
    )


def _draw_waits(profile: Profile) -> str:
    split = [batch.split_step() for batch in profile.real]
    points = [
        svg.Series(part, [(float(batch.number), parts[part] * 1000) for batch, parts in zip(profile.real, split, strict=True)])
        for part in (Part.LOAD, Part.PREPARE, Part.TRANSFER, Part.TRAIN)
    ]  # fmt: skip
    rows = [
        (escape(handoff.name), _format_ms(handoff.giver_wait_s / max(1, handoff.items)),
         _format_ms(handoff.taker_wait_s / max(1, handoff.items)), format_share(handoff.readiness))
        for handoff in profile.handoffs
    ]  # fmt: skip
    chart = svg.draw_lines(points, "batch", lambda ms: f"{ms:.4g} ms", from_zero=True)
    text = f"<p>What each step's time went into. The training waits {format_step_time(profile.wait_s)} per batch, at most {format_step_time(profile.longest_wait_s)}.</p>"
    if not rows:
        return chart + text
    header = ("Hand-off", "Giver waits", "Taker waits", "Batch ready")
    return chart + text + draw_table(header, rows)


def _draw_runs(profile: Profile) -> str:
    rows = [
        ("training alone", _format_ms(profile.cached_mean_s)),
        ("pipeline alone", _format_ms(profile.pipeline_mean_s)),
        ("both together", _format_ms(profile.times.mean_s)),
        ("of it waiting", _format_ms(profile.wait_s)),
    ]
    return draw_table(("Run", "Per batch"), rows)


def _draw_devices(profile: Profile) -> str:
    lines = [f"GPU {card.physical_id}: {card.describe()}" for card in summarise_cards(profile.samples)]
    if profile.card_problem:
        lines.append(profile.card_problem)
    lines.append(f"Host: {summarise_host(profile.samples).describe()}")
    return "".join(f"<p>{escape(line)}.</p>" for line in lines)


def _draw_memory(profile: Profile) -> str:
    rows = [
        (f"{memory.role} {escape(memory.device)}", *map(format_bytes, (memory.used_bytes, memory.peak_bytes, memory.limit_bytes,
                                                                       memory.pool_bytes, memory.process_bytes, memory.context_bytes)))
        for memory in profile.memory
    ]  # fmt: skip
    table = draw_table(("Role", "Used", "Peak", "Limit", "Pool", "Process", "Context"), rows)
    if len(profile.samples) < 2:
        return table
    origin_s = profile.samples[0].time_s
    series = [
        svg.Series("host, all processes", [(s.time_s - origin_s, s.host.rss_bytes / 2**30) for s in profile.samples])
    ]
    for card in summarise_cards(profile.samples):
        points: list[svg.Point] = [
            (s.time_s - origin_s, None if reading.used_mib is None else reading.used_mib / 1024)
            for s in profile.samples
            for reading in s.cards
            if reading.physical_id == card.physical_id
        ]
        series.append(svg.Series(f"GPU {card.physical_id}", points))
    return table + svg.draw_lines(series, "seconds", lambda size: f"{size:.4g} GB", from_zero=True)


def _format_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
