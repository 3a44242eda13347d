"""A run's summary as a person reads it, within 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterator

from myxtts.monitoring.findings import Finding
from myxtts.monitoring.flow import Flow
from myxtts.monitoring.metrics_rows import MemoryUse
from myxtts.monitoring.run_summary import Expectation, RunSummary
from myxtts.monitoring.step_clock import StepTimes
from myxtts.monitoring.time_ledger import Cause, Spent, measure_elapsed
from myxtts.monitoring.words import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_parts,
    format_share,
    format_step_time,
    wrap_titled,
)

WIDTH = 80
INDENT = 13


def format_summary(summary: RunSummary) -> str:
    """The whole summary: what was reached, where the time went, who waited, and the verdict as the last line."""
    sessions = f", {summary.sessions} sessions" if summary.sessions > 1 else ""
    machine = summary.machine
    return _join(
        ("Run", f"{summary.stage or UNKNOWN}, {summary.mode or UNKNOWN} mode, {summary.status}; "
                f"{format_count(summary.step)} steps in {format_duration(summary.elapsed_s)}{sessions}"),
        ("Loss", _format_loss(summary)),
        ("Goodput", f"{format_share(summary.goodput)}; the rest: {_format_badput(summary.spent)}"),
        *_list_pace(summary.times, summary.clips_per_s, summary.audio_seconds_per_s),
        ("Padding", f"{format_share(summary.padding_waste)} of what is computed; {summary.retraces} retraces"),
        ("Data stall", f"{format_share(summary.data_stall)} of the time, the training waited for a batch"),
        *(_list_handoffs(summary.flow) if summary.flow is not None else []),
        ("Speed-up", _format_speed_up(summary)),
        ("Memory", "; ".join(map(_describe_memory, summary.memory)) or UNKNOWN),
        *((f"GPU {card.physical_id}", card.describe()) for card in (machine.cards if machine else ())),
        *([("Host", machine.host.describe())] if machine else []),
        *([("Auto mode", _format_expected(summary.expected))] if summary.expected else []),
        *([("Finding", str(summary.variation))] if summary.variation else []),
        *(("Finding", leak) for leak in summary.leaks),
        ("Verdict", str(summary.limit) if summary.limit else f"{UNKNOWN}: nothing was trained yet."),
    )  # fmt: skip


def format_performance(
    times: StepTimes | None, clips_per_s: float | None, audio_seconds_per_s: float | None, variation: Finding | None
) -> str:
    """The pace of a session in two or three lines: step times, throughput, and what makes them vary."""
    finding = [] if variation is None else [("Finding", str(variation))]
    return _join(*_list_pace(times, clips_per_s, audio_seconds_per_s), *finding)


def _join(*rows: tuple[str, str]) -> str:
    lines = [wrap_titled(title, text, width=WIDTH, indent=INDENT, breaks_words=False) for title, text in rows]
    return "\n".join(line for each in lines for line in each)


def _format_loss(summary: RunSummary) -> str:
    parts = format_parts(summary.last_parts)
    text = f"{format_number(summary.first_loss)} -> {format_number(summary.last_loss)}" + (
        f" ({parts})" if parts else ""
    )
    if summary.best_validation is not None:
        step, loss = summary.best_validation
        text += f"; best validation {format_number(loss)} at step {format_count(step)}"
    return text


def _format_badput(spent: Spent) -> str:
    elapsed_s = measure_elapsed(spent)
    parts = [(seconds, cause) for cause, seconds in spent.items() if cause is not Cause.STEP and seconds > 0]
    shown = [(cause, format_share(seconds / elapsed_s)) for seconds, cause in sorted(parts, reverse=True)]
    return ", ".join(f"{cause} {share}" for cause, share in shown if share != format_share(0.0)) or "nothing"


def _list_pace(
    times: StepTimes | None, clips_per_s: float | None, audio_seconds_per_s: float | None
) -> list[tuple[str, str]]:
    throughput = (
        f"{format_number(clips_per_s, 3)} clips/s, {format_number(audio_seconds_per_s, 3)} seconds of audio per second"
    )
    if times is None:
        return [("Step time", UNKNOWN), ("Throughput", throughput)]
    p50, p95, mean, std, low, high = map(
        format_step_time, (times.p50_s, times.p95_s, times.mean_s, times.std_s, times.min_s, times.max_s)
    )
    steps = (
        f"{p50} p50, {p95} p95, mean {mean} +- {std} ({low} to {high}), variation {format_share(times.variation)}, "
        f"over {format_count(times.steps)} steps ({format_count(times.left_out)} left out)"
    )
    return [("Step time", steps), ("Throughput", throughput)]


def _list_handoffs(flow: Flow) -> Iterator[tuple[str, str]]:
    for number, handoff in enumerate(flow.handoffs):
        taker, giver = (format_share(flow.share(wait_s)) for wait_s in (handoff.taker_wait_s, handoff.giver_wait_s))
        yield (
            "",
            (
                f"{handoff.name}: ready {format_share(handoff.readiness)}; {flow.name_taker(number)} waits {taker}, "
                f"{flow.name_giver(number)} waits {giver}"
            ),
        )


def _format_expected(expected: Expectation) -> str:
    text = f"predicted {format_step_time(expected.predicted_s)} a step"
    if expected.reached_s is None:
        return f"{text}; reached {UNKNOWN}: no step counts yet"
    return (
        f"{text}, reached {format_step_time(expected.reached_s)} ({expected.reached_s / expected.predicted_s - 1:+.0%})"
    )


def _describe_memory(use: MemoryUse) -> str:
    """What a device or process holds, with what is known of its parts."""
    sizes = {"TensorFlow": use.pool_bytes, "process": use.process_bytes, "context": use.context_bytes}
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None)
    return f"{use} ({parts})" if parts else str(use)


def _format_speed_up(summary: RunSummary) -> str:
    gain = summary.speed_up
    if gain is None:
        return f"{UNKNOWN}: preparing and training were not both measured"
    return (
        f"{gain.reached:.2f}x of at most {gain.bound:.2f}x over one device in series (preparing "
        f"{format_step_time(gain.prepare_s)}, training {format_step_time(gain.train_s)} per batch)"
    )
