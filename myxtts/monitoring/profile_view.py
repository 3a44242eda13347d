"""A profile as plain text, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.profile_facts import Part, Profile
from myxtts.monitoring.profile_verdict import NO_BOTTLENECK, Verdict
from myxtts.monitoring.words import UNKNOWN, format_bytes, format_share, format_step_time, wrap_titled

WIDTH = 80
_wrap = partial(wrap_titled, width=WIDTH, indent=9)
NOTABLE_INTERFERENCE = 0.1


def format_profile(profile: Profile, verdict: Verdict) -> str:
    """The whole report."""
    sections = [
        list(_list_head(profile)),
        list(_list_breakdown(profile)),
        list(_list_runs(profile)),
        list(_list_utilisation(profile)),
        list(_list_memory(profile)),
        list(_list_verdict(profile, verdict)),
    ]
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
    costs = profile.costs
    yield "THREE RUNS, ms per batch"
    yield f"{'training alone':<24}{profile.cached_mean_s * 1000:>9.2f}   batches that are on the device already"
    yield f"{'pipeline alone':<24}{profile.pipeline_mean_s * 1000:>9.2f}   batches that are taken and thrown away"
    yield f"{'both together':<24}{profile.times.mean_s * 1000:>9.2f}   a run as it is"
    stall = ", ".join(f"{name} {costs[part].step_s * 1000:.2f}" for part, name in _STALLS)
    yield from _wrap("Waiting", f"{profile.wait_s * 1000:.2f} of both together: {stall}", indent=12)
    yield f"Headspace   {format_share(profile.headspace)} of a step: a faster pipeline could gain no more"
    yield f"Efficiency  {profile.efficiency:.2f} of what the {'slower of the two allows' if profile.run.has_two_devices else 'two in series allow'}"
    speed_up = profile.speed_up
    if profile.run.has_two_devices:
        yield (
            f"Speed-up    {speed_up.reached:.2f}x over one device that does both in turn; at most {speed_up.bound:.2f}x"
        )
    else:
        yield f"Speed-up    a second device for preparing would gain at most {speed_up.bound:.2f}x"
    if profile.interference > NOTABLE_INTERFERENCE:
        yield from _wrap(
            "Sharing",
            f"a batch trains {format_share(profile.interference)} slower beside the pipeline than alone: they share "
            f"{'processors' if profile.run.is_rehearsal else 'the host or the device'}, or others use the machine.",
            indent=12,
        )


_STALLS = (
    (Part.LOAD, "fetch"),
    (Part.PREPARE, "preparation"),
    (Part.TRANSFER, "transfer"),
    (Part.HAND_OFF, "hand-off"),
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
