"""A profile as a Chrome trace: a JSON file that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from myxtts.monitoring.profile_facts import BatchTimes, Profile
from myxtts.pipeline.batch_spans import Span

PROCESS = 1
LANES = ("read", "prepare", "transfer", "wait", "train")
"""Each is a row of the picture, in this order."""
_SMALLEST_US = 0.1


def format_trace(profile: Profile) -> str:
    """The real run, stage by stage and batch by batch, with cards and host as counters beside it."""
    batches = profile.real
    origin_s = min(min(span.began_s for _, span in _list_spans(batch)) for batch in batches)
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": PROCESS,
            "args": {"name": f"myxtts profile, {profile.run.mode} mode"},
        },
    ]
    for number, lane in enumerate(LANES):
        thread = {"pid": PROCESS, "tid": number}
        events.append({"name": "thread_name", "ph": "M", **thread, "args": {"name": lane}})
        events.append({"name": "thread_sort_index", "ph": "M", **thread, "args": {"sort_index": number}})
    for batch in batches:
        events += _list_batch_events(batch, origin_s)
    events += _list_counters(profile, origin_s)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _list_spans(batch: BatchTimes) -> list[tuple[str, Span]]:
    spans = batch.spans
    return list(zip(LANES, (spans.read, spans.prepare, spans.transfer, batch.wait, batch.train), strict=True))


def _list_batch_events(batch: BatchTimes, origin_s: float) -> Iterator[dict[str, Any]]:
    for lane, span in _list_spans(batch):
        yield {
            "name": f"{lane} {batch.number}",
            "cat": lane,
            "ph": "X",
            "pid": PROCESS,
            "tid": LANES.index(lane),
            "ts": _to_us(span.began_s - origin_s),
            # An event without a length is not shown.
            "dur": max(_SMALLEST_US, _to_us(span.seconds)),
            "args": {"batch": batch.number},
        }


def _list_counters(profile: Profile, origin_s: float) -> Iterator[dict[str, Any]]:
    for sample in profile.samples:
        place = {"ph": "C", "pid": PROCESS, "ts": _to_us(sample.time_s - origin_s)}
        yield {"name": "host memory, MB", **place, "args": {"run": sample.host.rss_bytes / 2**20}}
        if sample.host.cpu_share is not None:
            yield {"name": "processors busy, %", **place, "args": {"all": 100 * sample.host.cpu_share}}
        for card in sample.cards:
            counters = {"busy, %": card.utilization_percent, "power, W": card.power_w, "memory, MB": card.used_mib}
            for name, value in counters.items():
                # What the driver does not say is no point of the curve: 0 would be a lie.
                if value is not None:
                    yield {"name": f"GPU {card.physical_id} {name}", **place, "args": {"value": value}}


def _to_us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
