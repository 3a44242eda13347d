"""A profile as plain text within 80 columns, as JSON, and as a trace for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.profile_facts import NO_BOTTLENECK, Part, Profile, Verdict
from myxtts.monitoring.words import UNKNOWN, format_bytes, format_share, format_step_time, wrap_titled

_wrap = partial(wrap_titled, indent=9)
NOTABLE_INTERFERENCE = 0.1
LANES = ("read", "prepare", "transfer", "wait", "train")
"""Rows of the trace, in this order."""
_SMALLEST_US = 0.1


def format_profile(profile: Profile, verdict: Verdict) -> str:
    """The whole report."""
    parts = (_list_head, _list_breakdown, _list_runs, _list_utilisation, _list_memory)
    sections = [*(part(profile) for part in parts), _list_verdict(profile, verdict)]
    return "\n\n".join("\n".join(lines) for lines in sections)


def _list_head(profile: Profile) -> Iterator[str]:
    run = profile.run
    yield "DUAL GPU BOTTLENECK PROFILE" if run.has_two_devices else "BOTTLENECK PROFILE"
    rehearsal = ", rehearsal on logical CPU devices" if run.is_rehearsal else ""
    yield from _wrap("Mode", f"{run.mode}: {run.roles}{rehearsal}")
    yield from _wrap("Model", run.model)
    per_update = "1 batch" if run.accumulation == 1 else f"{run.accumulation} batches"
    yield from _wrap("Data", f"{run.corpus}; {run.batch_size} clips per batch, {per_update} per update")
    if profile.cached_share is not None:
        yield f"Cache    {format_share(profile.cached_share)} of the clips had their codes ready"
    for note in run.notes:
        yield from _wrap("Note", note)


def _list_breakdown(profile: Profile) -> Iterator[str]:
    times = profile.times
    yield f"TIMING BREAKDOWN ({times.steps} batches; {times.left_out} more left out: filling up, tracing)"
    yield f"{'':<14}{'own time, ms':>20}{'waited for, ms':>18}{'of a step':>12}"
    for part, cost in profile.costs.items():
        own = "" if part is Part.HAND_OFF else _format_spread(cost.own_s, cost.own_std_s)
        yield f"{part:<14}{own:>20}{cost.step_s * 1000:>18.2f}{cost.share:>12.1%}"
    std_s = times.std_s or 0.0
    yield f"{'Total':<14}{_format_spread(times.mean_s, std_s):>20}{times.mean_s * 1000:>18.2f}{1:>12.1%}"
    yield (
        f"Steps    p50 {format_step_time(times.p50_s)}, p95 {format_step_time(times.p95_s)}, "
        f"variation {format_share(times.variation)}"
    )
    yield (
        f"Gaps     the training waits {format_step_time(profile.wait_s)} per batch, "
        f"at most {format_step_time(profile.longest_wait_s)}"
    )


def _list_runs(profile: Profile) -> Iterator[str]:
    two, names = profile.run.has_two_devices, ("fetch", "preparation", "transfer", "hand-off")
    parts = (Part.LOAD, Part.PREPARE, Part.TRANSFER, Part.HAND_OFF)
    waits = [f"{name} {profile.costs[part].step_s * 1000:.2f}" for part, name in zip(parts, names, strict=True)]
    speed_up = profile.speed_up
    yield "THREE RUNS, ms per batch"
    yield f"{'training alone':<24}{profile.cached_mean_s * 1000:>9.2f}   batches that are on the device already"
    yield f"{'pipeline alone':<24}{profile.pipeline_mean_s * 1000:>9.2f}   batches that are taken and thrown away"
    yield f"{'both together':<24}{profile.times.mean_s * 1000:>9.2f}   a run as it is"
    yield from _wrap("Waiting", f"{profile.wait_s * 1000:.2f} of both together: {', '.join(waits)}", indent=12)
    yield f"Headspace   {format_share(profile.headspace)} of a step: a faster pipeline could gain no more"
    yield f"Efficiency  {profile.efficiency:.2f} of what the {'slower of the two allows' if two else 'two in series allow'}"
    reached = f"{speed_up.reached:.2f}x over one device that does both in turn; at most"
    yield f"Speed-up    {reached if two else 'a second device for preparing would gain at most'} {speed_up.bound:.2f}x"
    if profile.interference > NOTABLE_INTERFERENCE:
        yield from _wrap(
            "Sharing",
            f"a batch trains {format_share(profile.interference)} slower beside the pipeline than alone: they share "
            f"{'processors' if profile.run.is_rehearsal else 'the host or the device'}, or others use the machine.",
            indent=12,
        )


def _list_utilisation(profile: Profile) -> Iterator[str]:
    run = profile.run
    yield "GPU UTILIZATION"
    yield (
        f"Model    {run.model_device} busy {format_share(profile.training_share)}, "
        f"idle {format_share(1 - profile.training_share)}"
    )
    if run.has_two_devices:
        yield f"Data     {run.data_device} busy {format_share(profile.data_share)}"
    else:
        yield "Data     the same device prepares: its part is in the idle time above"
    cards = summarise_cards(profile.samples)
    for card in cards:
        yield from _wrap(f"GPU {card.physical_id}", card.describe())
    if profile.card_problem:
        yield from _wrap("Driver", profile.card_problem)
    elif not cards:
        yield f"Driver   {UNKNOWN}: no NVIDIA GPU takes part"
    yield from _wrap("Host", summarise_host(profile.samples).describe())


def _list_memory(profile: Profile) -> Iterator[str]:
    yield "MEMORY"
    for memory in profile.memory:
        yield (
            f"{memory.role.capitalize():<8} {memory.device}: {format_bytes(memory.used_bytes)} used, "
            f"peak {format_bytes(memory.peak_bytes)}, limit {format_bytes(memory.limit_bytes)}"
        )
        yield (
            f"{'':<9}TensorFlow's pool {format_bytes(memory.pool_bytes)}, process {format_bytes(memory.process_bytes)}, "
            f"CUDA context {format_bytes(memory.context_bytes)}"
        )
    host = summarise_host(profile.samples)
    yield f"Host     {format_bytes(host.peak_rss_bytes)} in all processes of the run, {format_bytes(host.least_free_bytes)} left free"


def _list_verdict(profile: Profile, verdict: Verdict) -> Iterator[str]:
    if verdict.is_balanced:
        yield NO_BOTTLENECK
        yield "Pipeline appears well-balanced"
        yield f"Training utilization: {format_share(profile.training_share)}"
        return
    yield f"BOTTLENECKS: the run is limited by {verdict.limit} (stage {verdict.stage!r})"
    for number, rule in enumerate(verdict.rules, start=1):
        yield from _wrap(f"{number}", f"{rule.title}: {rule.evidence}", indent=3)
    if not verdict.rules:
        yield from _wrap(
            "", f"No rule is broken, but only {format_share(profile.training_share)} of the time is training.", indent=3
        )
    advice = list(dict.fromkeys(sentence for rule in verdict.rules for sentence in rule.advice))
    if advice:
        yield ""
        yield "RECOMMENDATIONS, the first worth trying first"
        for number, sentence in enumerate(advice, start=1):
            yield from _wrap(f"{number}", sentence, indent=3)


def _format_spread(mean_s: float, std_s: float) -> str:
    return f"{mean_s * 1000:.2f} +- {std_s * 1000:.2f}"


def format_json(profile: Profile, verdict: Verdict) -> str:
    """Figures, verdict and every batch in seconds, bytes and shares of 1; unknown values are null."""
    figures = {name: getattr(profile, name) for name in ("headspace", "efficiency", "interference")}
    cards, host = summarise_cards(profile.samples), summarise_host(profile.samples)
    facts: dict[str, Any] = {
        "run": asdict(profile.run),
        "verdict": {"limited_by": verdict.limit, "stage": verdict.stage, **asdict(verdict)},
        "costs": {part: asdict(cost) for part, cost in profile.costs.items()},
        "step": {**asdict(profile.times), "variation": profile.times.variation},
        "gaps": {"mean_s": profile.wait_s, "longest_s": profile.longest_wait_s},
        "three_runs": {
            "training_alone_s": profile.cached_mean_s,
            "pipeline_alone_s": profile.pipeline_mean_s,
            "together_s": profile.times.mean_s,
            **figures,
        },
        "cached_share": profile.cached_share,
        "speed_up": {"reached": profile.speed_up.reached, "bound": profile.speed_up.bound},
        "utilization": {
            "model": profile.training_share,
            "data": profile.data_share,
            "cards": [asdict(card) for card in cards],
            "card_problem": profile.card_problem,
            "host": asdict(host),
        },
        "handoffs": [asdict(handoff) for handoff in profile.handoffs],
        "memory": [asdict(memory) for memory in profile.memory],
        "batches": [
            {"number": each.number, "step_s": each.step_s, "own_s": each.measure_own(), "split_s": each.split_step()}
            for each in profile.real
        ],
    }
    return json.dumps(facts, indent=1)


def format_trace(profile: Profile) -> str:
    """The real run, stage by stage and batch by batch, with cards and host as counters beside it."""
    spans = [
        (batch.number, lane, span)
        for batch in profile.real
        for lane, span in zip(LANES, (*batch.spans, batch.wait, batch.train), strict=True)
    ]
    origin_s = min(span.began_s for _, _, span in spans)
    name = f"myxtts profile, {profile.run.mode} mode"
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}}]
    for number, lane in enumerate(LANES):
        thread = {"ph": "M", "pid": 1, "tid": number}
        events.append({"name": "thread_name", **thread, "args": {"name": lane}})
        events.append({"name": "thread_sort_index", **thread, "args": {"sort_index": number}})
    for number, lane, span in spans:
        # An event without a length is not shown.
        times = {"ts": _to_us(span.began_s - origin_s), "dur": max(_SMALLEST_US, _to_us(span.seconds))}
        place = {"cat": lane, "ph": "X", "pid": 1, "tid": LANES.index(lane)}
        events.append({"name": f"{lane} {number}", **place, **times, "args": {"batch": number}})
    for sample in profile.samples:
        place = {"ph": "C", "pid": 1, "ts": _to_us(sample.time_s - origin_s)}
        share = sample.host.cpu_share
        counters = [
            ("host memory, MB", "run", sample.host.rss_bytes / 2**20),
            ("processors busy, %", "all", None if share is None else 100 * share),
        ]
        for card in sample.cards:
            figures = {"busy, %": card.utilization_percent, "power, W": card.power_w, "memory, MB": card.used_mib}
            counters += [(f"GPU {card.physical_id} {name}", "value", value) for name, value in figures.items()]
        # What the driver does not say is no point of the curve: 0 would be a lie.
        events += [{"name": name, **place, "args": {key: value}} for name, key, value in counters if value is not None]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _to_us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
