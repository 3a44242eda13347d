"""The figures of `myxtts bench pipeline` as plain text, within 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from myxtts.data.throughput import MOST_STEAL
from myxtts.pipeline.paced_bench import DUAL as PACED_DUAL
from myxtts.pipeline.paced_bench import ISOLATED as PACED_ISOLATED
from myxtts.pipeline.paced_bench import PacedCases, PacedOutcome
from myxtts.pipeline.ring_bench import RingSpeed
from myxtts.training.benches.pipeline import (
    CEILINGS,
    DATASET,
    DUAL,
    ISOLATED,
    PREPARE,
    PROCESSES,
    SERIES,
    THREADS,
    TRAIN,
    ModelOutcome,
    WatchOutcome,
)

LEAST_EFFICIENCY: Mapping[str, float] = {PACED_DUAL: 0.97, PACED_ISOLATED: 0.95}
MOST_VARIATION = 0.05
JUDGED_SLOWEST_MS = 50.0
LEAST_SHARE = 0.9
MOST_WATCH_COST = 0.01

MET, MISSED, NOT_QUIET = "met", "missed", "noisy"


def judge(is_met: bool, is_quiet: bool = True) -> str:
    """The word for a target; none for a figure that the host has spoilt."""
    return (MET if is_met else MISSED) if is_quiet else NOT_QUIET


def format_machine(machine: Mapping[str, Any], load: Sequence[float]) -> str:
    cores = machine["cores"]
    lines = [
        f"Machine  {machine['processor'] or 'unknown processor'}",
        f"         {cores} cores, Python {machine['python']}, TensorFlow {machine['tensorflow']}, NumPy {machine['numpy']}",
        format_load("before", load),
    ]
    if load[0] > cores / 4:
        lines.append("Warning  the machine was busy already: targets may be missed for that alone")
    return "\n".join(lines)


def format_load(when: str, load: Sequence[float]) -> str:
    return f"Load     {', '.join(f'{each:.2f}' for each in load)} {when} (over 1, 5, 15 minutes)"


def format_paced_head(cases: PacedCases) -> str:
    return "\n".join(
        [
            f"a  Hand-offs: {cases.batches} batches of {cases.batch_bytes / 2**20:g} MB through stages that hold their",
            "   device for a set time without using the CPU. It proves the hand-offs, nothing",
            "   else. Times in ms.",
            "",
            "host    engine    max(p,t)  p/t  alone  per batch  efficiency  variation",
        ]
    )


def format_paced_row(outcome: PacedOutcome) -> str:
    host = f"{outcome.busy_processes} busy" if outcome.busy_processes else "idle"
    verdict = judge_paced(outcome)
    return (
        f"{host:<7} {outcome.engine:<9} {outcome.slowest_ms:>8.0f} {outcome.ratio:>4g} {outcome.alone_ms:>6.2f} "
        f"{outcome.per_batch_ms:>10.2f} {outcome.efficiency:>11.3f} {outcome.variation:>10.3f}  {verdict}"
    ).rstrip()


def judge_paced(outcome: PacedOutcome) -> str:
    """Nothing for a case without a target."""
    if outcome.slowest_ms != JUDGED_SLOWEST_MS:
        return ""
    is_met = outcome.efficiency >= LEAST_EFFICIENCY[outcome.engine] and outcome.variation < MOST_VARIATION
    return judge(is_met, outcome.is_quiet)


def format_paced_foot(outcomes: Iterable[PacedOutcome]) -> str:
    outcomes = list(outcomes)
    least = ", ".join(f"{share} {engine}" for engine, share in LEAST_EFFICIENCY.items())
    counts = [judge_paced(outcome) for outcome in outcomes]
    told = ", ".join(f"{counts.count(word)} {word}" for word in (MET, MISSED, NOT_QUIET) if word in counts)
    return "\n".join(
        [
            f"Target   at {JUDGED_SLOWEST_MS:g} ms: efficiency at least {least},",
            f"         variation below {MOST_VARIATION}: {told}",
            format_windows(sum(outcome.discarded for outcome in outcomes), sum(not o.is_quiet for o in outcomes)),
            "",
        ]
    )


def format_windows(discarded: int, noisy: int) -> str:
    text = f"Windows  {discarded} discarded for more than {MOST_STEAL:.0%} steal"
    return f"{text}; {noisy} taken all the same, after that" if noisy else text


def list_model_figures(model: ModelOutcome) -> dict[str, Any]:
    """What is computed from the windows."""
    return {
        "batch_s": {name: model.get_batch_s(name) for name in model.windows},
        "bound": model.bound,
        "gain": {name: model.compute_gain(name) for name in model.windows},
        "share_of_ceiling": {name: model.compute_share(name) for name in CEILINGS},
    }


def format_model(model: ModelOutcome) -> str:
    prepare_s, train_s = model.get_batch_s(PREPARE), model.get_batch_s(TRAIN)
    lines = [
        "b  The tiny model on rehearsal devices of one core each, real clips, no cache",
        "",
        "                            ms/batch  least   most  x series  of ceiling",
    ]
    for name in (PREPARE, TRAIN, SERIES, THREADS, PROCESSES, DUAL, ISOLATED, DATASET):
        times = model.windows[name]
        row = f"{name:<27} {model.get_batch_s(name) * 1000:>8.0f} {min(times) * 1000:>6.0f} {max(times) * 1000:>6.0f}"
        if name not in (PREPARE, TRAIN):
            row += f" {model.compute_gain(name):>9.2f}"
        if name in CEILINGS:
            row += f" {model.compute_share(name):>11.2f}"
        if name in (DUAL, ISOLATED):
            row += f"  {judge_share(model, name)}"
        lines.append(row)
    lines += [
        "",
        f"Bound    1 + min/max = {model.bound:.2f} times the series (p/t = {prepare_s / train_s:.2f})",
        f"Ceiling  side by side without a hand-off: {model.compute_gain(THREADS):.2f} by two threads, "
        f"{model.compute_gain(PROCESSES):.2f} by processes",
        f"Target   at least {LEAST_SHARE} of its ceiling: dual {judge_share(model, DUAL)}, isolated {judge_share(model, ISOLATED)}",
        format_windows(model.discarded, model.noisy),
    ]
    if model.cores < 2:
        lines.append("Warning  one core only: nothing can run side by side, so nothing is judged")
    return "\n".join(lines)


def judge_share(model: ModelOutcome, name: str) -> str:
    if model.cores < 2:
        return "-"
    return judge(model.compute_share(name) >= LEAST_SHARE, is_quiet=not model.noisy)


def format_ring(speed: RingSpeed) -> str:
    return "\n".join(
        [
            f"c  The ring: batches of {speed.batch_bytes / 2**20:g} MB in shared memory, GB/s",
            "",
            f"pack into a slot, with checksum       {speed.pack:>6.2f}",
            f"verify a slot                         {speed.read:>6.2f}",
            f"copy out of a slot, verified          {speed.copy_out:>6.2f}",
            f"round trip from process to process    {speed.round_trip:>6.2f}",
            format_windows(speed.discarded, int(speed.steal > MOST_STEAL)),
        ]
    )


def format_watch(watch: WatchOutcome) -> str:
    costs = watch.costs
    return "\n".join(
        [
            "d  Watching: the training loop with metrics, view and TensorBoard, and without",
            "",
            f"ms per update: {statistics.median(watch.unwatched_ms):.1f} without, {statistics.median(watch.watched_ms):.1f} with; "
            f"difference {watch.cost:+.2%} ({min(costs):+.2%} to {max(costs):+.2%})",
            f"Inside   the watch: {statistics.median(watch.inside_ms):.2f} ms, {watch.inside:.2%}: its calls, and its threads on the processor",
            f"Target   below {MOST_WATCH_COST:.0%} inside: {judge(watch.inside < MOST_WATCH_COST, is_quiet=not watch.noisy)}",
            format_windows(watch.discarded, watch.noisy),
        ]
    )
