"""A run as a self-contained HTML page, made from its metrics file alone: no script, no address, pictures as inline SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from myxtts.files import open_file_atomically
from myxtts.monitoring import svg
from myxtts.monitoring.flow import TRAINING, list_stage_shares
from myxtts.monitoring.html_table import draw_table, draw_tiles
from myxtts.monitoring.loss_curve import draw_losses
from myxtts.monitoring.machine_page import draw_machine
from myxtts.monitoring.metrics_log import Metrics, read_metrics
from myxtts.monitoring.metrics_rows import EventRow, MachineRow, MemoryUse, RunRow, TrainRow
from myxtts.monitoring.page_style import STYLE
from myxtts.monitoring.run_summary import RunSummary, summarise_run
from myxtts.monitoring.time_ledger import Cause
from myxtts.monitoring.words import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_share,
    format_step_time,
)

MOST_EVENTS = 200


def write_report(metrics_path: Path, page_path: Path) -> None:
    """Writes the page of a finished or a running run."""
    page = format_report(read_metrics(metrics_path))
    with open_file_atomically(page_path) as file:
        file.write(page.encode())


def format_report(metrics: Metrics) -> str:
    """The page."""
    rows, summary = metrics.rows, summarise_run(metrics.rows)
    trains = [row for row in rows if isinstance(row, TrainRow)]
    title = f"{summary.stage or 'run'}, {summary.mode or UNKNOWN} mode"
    sections = [
        ("Loss", draw_losses(rows)),
        ("Where the time went", _draw_time(summary)),
        ("Step times", _draw_step_times(summary, trains)),
        ("Who works and who waits", _draw_stages(summary)),
        ("Batches ready, by hand-off", _draw_readiness(trains)),
        ("Memory", _draw_memory(trains)),
        ("Cards and host", draw_machine([row for row in rows if isinstance(row, MachineRow)])),
        ("Events", _draw_events([row for row in rows if isinstance(row, EventRow)])),
        ("Settings", _draw_settings([row for row in rows if isinstance(row, RunRow)])),
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_describe_run(metrics, summary)}</p>",
        f'<p class="verdict">{escape(str(summary.limit) if summary.limit else "Nothing was trained yet.")}</p>',
        *([f'<p class="verdict">{escape(str(summary.variation))}</p>'] if summary.variation else []),
        *(f'<p class="verdict">{escape(leak)}</p>' for leak in summary.leaks),
        _draw_tiles(summary),
        *(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _describe_run(metrics: Metrics, summary: RunSummary) -> str:
    parts = [
        f"{escape(summary.status.capitalize())}; {format_count(summary.step)} steps in {format_duration(summary.elapsed_s)}",
        f"{summary.sessions} session{'' if summary.sessions == 1 else 's'}, "
        f"from {_format_time(metrics.rows[0].time_s)} to {_format_time(metrics.rows[-1].time_s)}",
    ]
    if metrics.unreadable:
        parts.append(f"{metrics.unreadable} lines of the metrics file could not be read")
    return ". ".join(parts) + "."


def _draw_tiles(summary: RunSummary) -> str:
    speed_up = summary.speed_up
    tiles = [
        ("goodput", format_share(summary.goodput), "time spent in steps"),
        ("data stall", format_share(summary.data_stall), "time waiting for batches"),
        ("step time", format_step_time(summary.times.p50_s if summary.times else None),
         f"p95 {format_step_time(summary.times.p95_s if summary.times else None)}, "
         f"variation {format_share(summary.times.variation if summary.times else None)}"),
        ("throughput", f"{format_number(summary.audio_seconds_per_s, 3)}", f"audio-s/s; {format_number(summary.clips_per_s, 3)} clips/s"),
        ("speed-up", f"{speed_up.reached:.2f}x" if speed_up else UNKNOWN, f"at most {speed_up.bound:.2f}x" if speed_up else "not measured"),
        ("padding", format_share(summary.padding_waste), f"{summary.retraces} retraces"),
    ]  # fmt: skip
    return draw_tiles(tiles)


def _draw_time(summary: RunSummary) -> str:
    causes = [(cause, seconds) for cause, seconds in summary.spent.items() if seconds > 0]
    causes.sort(key=lambda entry: (entry[0] is not Cause.STEP, -entry[1]))
    if not causes:
        return '<p class="unknown">No time was booked yet.</p>'
    parts = [svg.Part(str(cause), seconds / summary.elapsed_s, list(Cause).index(cause)) for cause, seconds in causes]
    cells = [
        (str(cause), format_duration(seconds), format_share(seconds / summary.elapsed_s)) for cause, seconds in causes
    ]
    return svg.draw_bars([("run", parts)]) + draw_table(("Cause", "Time", "Share"), cells)


def _draw_step_times(summary: RunSummary, trains: Sequence[TrainRow]) -> str:
    durations_s = [duration for row in trains for duration in row.step_times_s]
    times = summary.times
    if times is None:
        return (
            '<p class="unknown">No step counts yet: warm-up and steps that traced, validated or saved are left out.</p>'
        )
    return svg.draw_histogram(durations_s, format_step_time) + (
        f"<p>{format_count(times.steps)} steps, {format_count(times.left_out)} left out (warm-up, traced, validated, saved). "
        f"Mean {format_step_time(times.mean_s)}, from {format_step_time(times.min_s)} to {format_step_time(times.max_s)}.</p>"
    )


def _draw_stages(summary: RunSummary) -> str:
    flow = summary.flow
    if flow is None or not (flow.stages or flow.handoffs):
        return '<p class="unknown">Unknown: this run has no stages that were measured.</p>'
    rows = []
    for stage in list_stage_shares(flow):
        shares = (
            ("busy", stage.busy),
            ("waits for a batch", stage.waits_for_batch),
            ("waits for a slot", stage.waits_for_slot),
        )
        rows.append(
            (
                stage.name,
                [svg.Part(name, share, number) for number, (name, share) in enumerate(shares) if share is not None],
            )
        )
    busy, stall = summary.goodput, summary.data_stall
    if busy is not None and stall is not None:
        rows.append((TRAINING, [svg.Part("busy", busy, 0), svg.Part("waits for a batch", stall, 1)]))
    return svg.draw_bars(rows)


def _draw_readiness(trains: Sequence[TrainRow]) -> str:
    flows = [(float(row.step), row.flow) for row in trains if row.flow is not None]
    names = list(dict.fromkeys(handoff.name for _, flow in flows for handoff in flow.handoffs))
    if not names:
        return '<p class="unknown">Unknown: this run has no hand-offs that were measured.</p>'
    series = [
        svg.Series(name, [(step, h.readiness) for step, flow in flows for h in flow.handoffs if h.name == name])
        for name in names
    ]
    chart = svg.draw_lines(series, "step", lambda share: f"{share:.0%}", from_zero=True, y_max=1.0)
    return (
        chart
        + "<p>Share of the time a batch was ready. Near 0: the stage before is the bottleneck. Near 1: the one after.</p>"
    )


def _draw_memory(trains: Sequence[TrainRow]) -> str:
    last = {use.device: use for row in trains for use in row.memory}
    series = [svg.Series(device, _list_memory(trains, device)) for device in last]
    known = [one for one in series if any(size is not None for _, size in one.points)]
    if not known:
        return '<p class="unknown">Unknown: no device reported its memory.</p>'
    cells = [(escape(use.device), *map(format_bytes, _list_sizes(use))) for use in last.values()]
    chart = svg.draw_lines(known, "step", lambda size: f"{size:.4g} GB", from_zero=True)
    return chart + draw_table(("Memory of", "Used", "Limit", "TensorFlow", "Process on it", "CUDA context"), cells)


def _list_sizes(use: MemoryUse) -> tuple[int | None, ...]:
    return use.used_bytes, use.limit_bytes, use.pool_bytes, use.process_bytes, use.context_bytes


def _list_memory(trains: Sequence[TrainRow], device: str) -> list[svg.Point]:
    return [
        (float(row.step), None if use.used_bytes is None else use.used_bytes / 2**30)
        for row in trains
        for use in row.memory
        if use.device == device
    ]


def _draw_events(events: Sequence[EventRow]) -> str:
    if not events:
        return "<p>None.</p>"
    cells = "".join(
        f'<tr><td class="number">{format_count(event.step)}</td><td>{_format_time(event.time_s)}</td>'
        f'<td>{escape(event.name)}</td><td class="text">{escape(event.text)}</td></tr>'
        for event in events[-MOST_EVENTS:]
    )
    left_out = f"<p>The last {MOST_EVENTS} of {len(events)}.</p>" if len(events) > MOST_EVENTS else ""
    return f'{left_out}<table><tr><th class="number">Step</th><th>Time</th><th>Event</th><th>What happened</th></tr>{cells}</table>'


def _draw_settings(runs: Sequence[RunRow]) -> str:
    if not runs:
        return f'<p class="unknown">{UNKNOWN.capitalize()}.</p>'
    last = runs[-1]
    devices = ", ".join(f"{role} on {device}" for role, device in last.devices.items())
    facts = json.dumps({"settings": last.settings, "environment": last.environment}, indent=2, ensure_ascii=False)
    return (
        f"<p>{escape(devices)}</p><details><summary>All settings in force</summary><pre>{escape(facts)}</pre></details>"
    )


def _format_time(time_s: float) -> str:
    if not math.isfinite(time_s):
        return UNKNOWN
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
