"""Where the time of a training step goes: the user's own run, measured in three runs in a folder that is thrown away.

Nothing here imports TensorFlow before something is measured: what cannot be is refused, and the plan shown, at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from myxtts.config import XTTSConfig
from myxtts.config.presets import name_size
from myxtts.config.settings import parse_gpu_ids
from myxtts.devices.machine import Machine
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, Process
from myxtts.devices.planning import plan_devices
from myxtts.errors import UserError
from myxtts.files import open_scratch_folder
from myxtts.monitoring.findings import MachineFacts, Settings
from myxtts.monitoring.memory import read_memory_use
from myxtts.monitoring.metrics import MemoryUse
from myxtts.monitoring.profile_facts import (
    LAUNCH_S,
    NO_BOTTLENECK,
    STAGES,
    BatchTimes,
    Profile,
    ProfiledRun,
    StepPart,
    Verdict,
    judge_profile,
)
from myxtts.monitoring.sampler import MachineSampler, list_sampled_cards, summarise_cards, summarise_host
from myxtts.pipeline.batch import Span
from myxtts.reports import charts
from myxtts.reports.pages import render_page
from myxtts.training.mode import Tell, fix_cache, plan_run
from myxtts.units import UNKNOWN, format_bytes, format_share, format_step_time, wrap_titled

if TYPE_CHECKING:
    from myxtts.tuning.profiling import Profiler, ProfileSetup


def request_one(config: XTTSConfig, command: Sequence[str] = ()) -> PlanRequest:
    """What the run asks for, with one device that trains: of `--model-gpus` the first."""
    return replace(PlanRequest.from_config(config, command), other_gpus=())


def refuse_decoder(config: XTTSConfig) -> None:
    """Raises `UserError` where a decoder would be trained."""
    if config.training.stage == "decoder":
        raise UserError(
            "Only the training of a codec or a GPT can be measured, but --stage is decoder. Leave --stage out; reading is the same "
            "for both."
        )


def describe_workers(config: XTTSConfig, several: str | None = None) -> tuple[str, ...]:
    """What a measurement leaves out where several workers would share every batch; nothing where one process trains."""
    training, several = config.training, several or config.training.model_gpus
    if several is None and training.trainers == 1:
        return ()
    workers, asked = training.trainers, "the cluster"
    if several is not None:
        workers, asked = len(parse_gpu_ids(several)), f"--model-gpus {several}"
    return (
        f"One device is measured, alone and with whole batches. With {asked}, {workers} of them share every batch and exchange their "
        "gradients; neither is in these figures.",
    )


class ProfilePlan(NamedTuple):
    """The plan of a run that is measured."""

    config: XTTSConfig
    """As the run would have it: a mode that is chosen comes with its own `--cache`."""
    plan: DevicePlan
    notes: tuple[str, ...] = ()
    """What of the run that was asked for is not measured."""


def plan_profile(config: XTTSConfig, machine: Machine, tell: Tell, command: Sequence[str] = ()) -> ProfilePlan:
    """The plan to measure a configuration with. `--mode auto` is chosen as a training would; of several workers one is measured."""
    refuse_decoder(config)
    if config.training.mode != "auto":
        return ProfilePlan(config, plan_devices(request_one(config, command), machine), describe_workers(config))
    planned = plan_run(config, command, machine=machine, tell=tell)
    config, plan = fix_cache(config, planned.choice), planned.plan
    if not plan.others:
        return ProfilePlan(config, plan)
    several = ",".join(str(each.physical_id) for each in plan.trainers)
    return ProfilePlan(config, replace(plan, others=()), describe_workers(config, several))


def measure_and_judge(planned: ProfilePlan, machine: Machine, steps: int, tell: Tell) -> tuple[Profile, Verdict]:
    """The profile of a planned run, and the verdict on it with the settings in force."""
    profile = measure(planned, steps, tell)
    return profile, judge_profile(profile, Settings.of_config(planned.config, MachineFacts.of_machine(machine)))


def measure(planned: ProfilePlan, steps: int, tell: Tell) -> Profile:
    from myxtts.training.model import apply_devices
    from myxtts.tuning.profiling import MeasuredTraining, Profiler, set_up_profile
    from myxtts.utils.commons import get_device_context

    config, plan, notes = planned
    apply_devices(config, plan)
    with open_scratch_folder("profile") as folder, get_device_context(plan.model.device):
        tell("reading the corpus")
        setup = set_up_profile(config, plan, folder)
        run = describe_run(setup, notes)
        tell(f"building {run.model}")
        training = MeasuredTraining(setup)
        tell("opening the pipeline")
        with closing(setup.open_batches()) as source:
            read_ahead, shapes = config.data.pipeline_buffer_size, len(setup.data.sampler.plan.buckets)
            profiler = Profiler(source, training, steps=steps, read_ahead=read_ahead, shapes=shapes)
            return measure_three_runs(profiler, run, plan, tell)


def describe_run(setup: ProfileSetup, notes: tuple[str, ...] = ()) -> ProfiledRun:
    from myxtts.models.weights import count_parameters

    config, plan, batches = setup.config, setup.plan, setup.data.sampler.plan
    name = "dvae" if setup.codec is None else "gpt"
    size, millions = name_size(config.model.model_dump()), count_parameters(config.model)[name] / 1e6
    return ProfiledRun(
        mode=str(plan.mode),
        is_rehearsal=plan.rehearsal,
        # Each process names its own devices from 0 on: without this both roles may seem to share one.
        data_device=f"{plan.data.device} of the producer process" if plan.has_producer else plan.data.device,
        model_device=plan.model.device,
        batch_size=config.data.batch_size,
        accumulation=config.training.gradient_accumulation_steps,
        model=f"{size or 'custom'} {name}, {millions:.1f} M parameters, {config.data.mixed_precision}",
        corpus=f"{len(setup.data.train)} clips, {len(batches.buckets)} batch shapes, {batches.waste.audio_share:.0%} padding",
        notes=(*notes, *setup.notes),
    )


def measure_three_runs(profiler: Profiler, run: ProfiledRun, plan: DevicePlan, tell: Tell) -> Profile:
    tell("tracing the step")
    profiler.warm_up()
    tell("run 1 of 3: training without the pipeline")
    profiler.run_cached()
    tell("run 2 of 3: the pipeline without training")
    pipeline = profiler.run_pipeline()
    tell("run 3 of 3: pipeline and training")
    with MachineSampler(list_sampled_cards(plan)) as sampler:
        free, step_s, left_out = profiler.run_free()
        synced, left_out_too = profiler.run_synced()
    profiler.run_cached()
    meters = profiler.source.read_facts().meters
    return Profile(
        run=run,
        synced=tuple(synced),
        free=tuple(free),
        step_s=step_s,
        pipeline=tuple(pipeline),
        cached_s=tuple(profiler.list_cached(free)),
        left_out=left_out + left_out_too,
        launches=profiler.training.count_launches(),
        cache_hits=meters.cache_hits,
        cache_misses=meters.cache_misses,
        memory=tuple(_read_memory(plan)),
        samples=tuple(sampler.samples),
        card_problem=sampler.problem,
    )


def _read_memory(plan: DevicePlan) -> Iterator[MemoryUse]:
    """What each role holds now, as far as this process can know it."""
    for role in plan.own_roles:
        use = read_memory_use(role)
        # In a rehearsal a reading is of this process, whichever role is asked for: it says nothing about either where both are in it.
        if plan.rehearsal and (role.process is not Process.TRAINER or plan.mode is Mode.DUAL):
            use = MemoryUse(use.device, None, use.limit_bytes)
        yield replace(use, process_bytes=None) if plan.rehearsal else use


SHOWN_BATCHES = 8
"""In the timeline: more would be too narrow to see."""
LANES = ("read", "prepare", "transfer", "wait", "train")
"""Rows of timeline and trace, in this order."""
HALVES = (
    "synchronised: every step is waited for, which tells the parts apart; unsynchronised: as a run is, which tells how long a step "
    "and its stalls really are"
)
_wrap = partial(wrap_titled, indent=9)


def _list_spans(profile: Profile) -> Iterator[tuple[BatchTimes, str, Span]]:
    """Every piece of work of the synchronised half, with its batch and its lane."""
    for batch in profile.synced:
        for lane, span in zip(LANES, (*batch.spans, batch.wait, batch.train), strict=True):
            yield batch, lane, span


def format_page(profile: Profile, verdict: Verdict) -> str:
    """The report, with pictures."""
    batches, shown = profile.synced, profile.synced[:SHOWN_BATCHES]
    parts = [charts.BarPart(part, cost.share, number) for number, (part, cost) in enumerate(profile.costs.items())]
    lanes: dict[str, list[tuple[str, float, float]]] = {lane: [] for lane in LANES}
    # While those that are shown are trained on, later ones are read and prepared.
    for batch, lane, span in _list_spans(profile):
        lanes[lane].append((str(batch.number), span.began_s, span.ended_s))
    split = [(float(batch.number), batch.split_step()) for batch in batches]
    waits = [charts.Series(part, [(number, each[part] * 1000) for number, each in split]) for part in STAGES]
    return render_page(
        "profile.html",
        title=f"Profile, {profile.run.mode} mode",
        report=format_profile(profile, verdict),
        shown=shown,
        breakdown=charts.draw_bars([("step", parts)]),
        timeline=charts.draw_timeline([*lanes.items()], shown[0].wait.began_s, shown[-1].train.ended_s),
        step_times=charts.draw_histogram([batch.step_s for batch in batches], format_step_time),
        waits=charts.draw_lines(waits, "batch", lambda ms: f"{ms:.4g} ms", from_zero=True),
    )


def format_profile(profile: Profile, verdict: Verdict) -> str:
    """The whole report, its sections with an empty line between them."""
    return "\n".join([*_list_times(profile), *_list_devices(profile), *_list_verdict(profile, verdict)])


def _list_times(profile: Profile) -> Iterator[str]:
    """What was measured, and what a step's time goes into."""
    run, times = profile.run, profile.times
    yield "DUAL GPU BOTTLENECK PROFILE" if run.has_two_devices else "BOTTLENECK PROFILE"
    rehearsal = ", rehearsal on logical CPU devices" if run.is_rehearsal else ""
    per_update = "1 batch" if run.accumulation == 1 else f"{run.accumulation} batches"
    yield from _wrap("Mode", f"{run.mode}: {run.roles}{rehearsal}")
    yield from _wrap("Model", run.model)
    yield from _wrap("Data", f"{run.corpus}; {run.batch_size} clips per batch, {per_update} per update")
    if profile.cached_share is not None:
        yield f"Cache    {format_share(profile.cached_share)} of the clips had their codes ready"
    for note in run.notes:
        yield from _wrap("Note", note)
    counted = f"{times.steps} + {len(profile.free)} batches"
    yield f"\nTIMING BREAKDOWN ({counted}; {times.left_out} more left out: filling up, tracing)"
    yield f"{'':<14}{'synchronised':>20}{'unsynchronised':>18}"
    yield f"{'':<14}{'own time, ms':>20}{'waited for, ms':>18}{'of a step':>12}"
    rows = [(part, cost.own_s, cost.own_std_s, cost.step_s, cost.share) for part, cost in profile.costs.items()]
    for name, own_s, std_s, step_s, share in (*rows, ("Total", times.mean_s, times.std_s or 0.0, profile.step_s, 1.0)):
        own = "" if name == StepPart.HAND_OFF else f"{own_s * 1000:.2f} +- {std_s * 1000:.2f}"
        yield f"{name:<14}{own:>20}{step_s * 1000:>18.2f}{share:>12.1%}"
    yield from _wrap("Which", HALVES)
    shown = (times.p50_s, times.p95_s, profile.stall_s, profile.longest_wait_s)
    p50, p95, stall, longest = map(format_step_time, shown)
    yield f"Steps    p50 {p50}, p95 {p95}, variation {format_share(times.variation)} (synchronised)"
    yield from _wrap("Gaps", f"the training waits {stall} per batch, at most {longest} (unsynchronised)")
    if profile.launches is not None:
        yield from _wrap("Launches", describe_launches(profile))
    yield "\nTHREE RUNS, ms per batch"
    for name, seconds, what in (
        ("training alone", profile.cached_mean_s, "batches that are on the device already"),
        ("pipeline alone", profile.pipeline_mean_s, "batches that are taken and thrown away"),
        ("both together", profile.step_s, "a run as it is: unsynchronised"),
        ("synchronised", times.mean_s, "both together, with every step waited for"),
    ):
        yield f"{name:<24}{seconds * 1000:>9.2f}   {what}"
    yield f"Headspace   {format_share(profile.headspace)} of a step: a faster pipeline could gain no more"
    gain = "a second device for preparing would gain at most"
    if run.has_two_devices:
        gain = f"{profile.speed_up.reached:.2f}x over one device that does both in turn; at most"
    yield f"Speed-up    {gain} {profile.speed_up.bound:.2f}x"


def describe_launches(profile: Profile) -> str:
    """How many kernels the step starts, and what that would take a GPU."""
    assert profile.launches is not None
    gradients, update, is_compiled = profile.launches
    counted = f"{'by XLA ' if is_compiled else ''}{gradients:,} kernels for gradients and {update:,} for an update"
    cost = f"at about {LAUNCH_S * 1e6:.0f} us each {format_step_time(profile.launch_s)} of a batch's time"
    if profile.run.is_on_gpu:
        return f"{counted}, {cost}"
    return (
        f"{counted}, as the step is built for a processor. Here nothing is launched; a GPU, for which it is built with fewer, would take "
        f"{cost}"
    )


def _list_devices(profile: Profile) -> Iterator[str]:
    """How busy devices and host are, and what they hold."""
    run, share, cards = profile.run, profile.training_share, summarise_cards(profile.samples)
    host = summarise_host(profile.samples)
    yield "\nGPU UTILIZATION"
    yield f"Model    {run.model_device} busy {format_share(share)}, idle {format_share(1 - share)}"
    prepares = f"{run.data_device} busy {format_share(profile.data_share)}"
    yield f"Data     {prepares if run.has_two_devices else 'the same device prepares: its part is in the idle time above'}"
    for card in cards:
        yield from _wrap(f"GPU {card.physical_id}", card.describe())
    if profile.card_problem or not cards:
        yield from _wrap("Driver", profile.card_problem or f"{UNKNOWN}: no NVIDIA GPU takes part")
    yield from _wrap("Host", host.describe())
    yield "\nMEMORY"
    for use in profile.memory:
        role, _, device = use.device.partition(" ")
        sizes = (use.used_bytes, use.peak_bytes, use.limit_bytes, use.pool_bytes, use.process_bytes, use.context_bytes)
        used, peak, limit, pool, process, context = map(format_bytes, sizes)
        yield f"{role.capitalize():<8} {device}: {used} used, peak {peak}, limit {limit}"
        yield f"{'':<9}TensorFlow's pool {pool}, process {process}, CUDA context {context}"
    yield f"Host     {format_bytes(host.peak_rss_bytes)} in all processes of the run, {format_bytes(host.least_free_bytes)} left free"


def _list_verdict(profile: Profile, verdict: Verdict) -> Iterator[str]:
    share = format_share(profile.training_share)
    if verdict.is_balanced:
        yield from ("", NO_BOTTLENECK, "Pipeline appears well-balanced", f"Training utilization: {share}")
        return
    yield f"\nBOTTLENECKS: the run is limited by {verdict.limit} (stage {verdict.stage!r})"
    for number, rule in enumerate(verdict.rules, start=1):
        yield from _wrap(f"{number}", f"{rule.title}: {rule.evidence}", indent=3)
    if not verdict.rules:
        yield f"   No rule is broken, but only {share} of the time is training."
        return
    yield "\nRECOMMENDATIONS, the first worth trying first"
    advice = dict.fromkeys(sentence for rule in verdict.rules for sentence in rule.advice)
    for number, sentence in enumerate(advice, start=1):
        yield from _wrap(f"{number}", sentence, indent=3)


def format_json(profile: Profile, verdict: Verdict) -> str:
    """Figures, verdict and every batch in seconds, bytes and shares of 1; unknown values are null."""
    facts: dict[str, Any] = {
        "run": asdict(profile.run),
        "verdict": {"limited_by": verdict.limit, "stage": verdict.stage, **asdict(verdict)},
        "costs": {part: asdict(cost) for part, cost in profile.costs.items()},
        "synchronised": {**asdict(profile.times), "variation": profile.times.variation},
        "unsynchronised": {"steps": len(profile.free), "step_s": profile.step_s, "stall_s": profile.stall_s},
        "launches": None if profile.launches is None else {**profile.launches._asdict(), "on_gpu_s": profile.launch_s},
        "three_runs": {
            "training_alone_s": profile.cached_mean_s,
            "pipeline_alone_s": profile.pipeline_mean_s,
            "together_s": profile.step_s,
            "headspace": profile.headspace,
        },
        "longest_wait_s": profile.longest_wait_s,
        "cached_share": profile.cached_share,
        "speed_up": profile.speed_up._asdict(),
        "utilization": {
            "model": profile.training_share,
            "data": profile.data_share,
            "cards": [asdict(card) for card in summarise_cards(profile.samples)],
            "card_problem": profile.card_problem,
            "host": asdict(summarise_host(profile.samples)),
        },
        "memory": [asdict(use) for use in profile.memory],
        "batches": [
            {"number": each.number, "step_s": each.step_s, "own_s": each.measure_own(), "split_s": each.split_step()}
            for each in profile.synced
        ],
    }
    return json.dumps(facts, indent=1)


def format_trace(profile: Profile) -> str:
    """The synchronised half of the run, stage by stage and batch by batch, as ui.perfetto.dev opens it."""
    name = f"myxtts profile, {profile.run.mode} mode"
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}}]
    for number, lane in enumerate(LANES):
        for kind, facts in (("thread_name", {"name": lane}), ("thread_sort_index", {"sort_index": number})):
            events.append({"name": kind, "ph": "M", "pid": 1, "tid": number, "args": facts})
    origin_s = min(span.began_s for *_, span in _list_spans(profile))
    for batch, lane, span in _list_spans(profile):
        # An event without a length is not shown.
        began_us, long_us = (round(seconds * 1e6, 1) for seconds in (span.began_s - origin_s, span.seconds))
        place = {"cat": lane, "ph": "X", "pid": 1, "tid": LANES.index(lane), "ts": began_us, "dur": max(0.1, long_us)}
        events.append({"name": f"{lane} {batch.number}", **place, "args": {"batch": batch.number}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
