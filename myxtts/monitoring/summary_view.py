"""A run's summary as a person reads it, within 80 columns and without colour."""

from __future__ import annotations

from myxtts.monitoring.findings import Finding
from myxtts.monitoring.flow import Flow
from myxtts.monitoring.metrics_rows import MachineRow, MemoryUse
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
    lines = [
        _line("Run", f"{summary.stage or UNKNOWN}, {summary.mode or UNKNOWN} mode, {summary.status}; "
                     f"{format_count(summary.step)} steps in {format_duration(summary.elapsed_s)}" + (f", {summary.sessions} sessions" if summary.sessions > 1 else "")),
        _line("Loss", _format_loss(summary)),
        _line("Goodput", f"{format_share(summary.goodput)}; the rest: {_format_badput(summary.spent)}"),
        _line("Step time", _format_times(summary.times)),
        _line("Throughput", _format_throughput(summary.clips_per_s, summary.audio_seconds_per_s)),
        _line("Padding", f"{format_share(summary.padding_waste)} of what is computed; {summary.retraces} retraces"),
        _line("Data stall", f"{format_share(summary.data_stall)} of the time, the training waited for a batch"),
        *(_format_handoffs(summary.flow) if summary.flow is not None else []),
        _line("Speed-up", _format_speed_up(summary)),
    ]  # fmt: skip
    lines += [
        _line("Memory", "; ".join(map(_describe_memory, summary.memory)) or UNKNOWN),
        *_format_machine(summary.machine),
    ]
    if summary.expected is not None:
        lines.append(_line("Auto mode", _format_expected(summary.expected)))
    if summary.variation is not None:
        lines.append(_line("Finding", str(summary.variation)))
    lines += [_line("Finding", leak) for leak in summary.leaks]
    lines.append(_line("Verdict", str(summary.limit) if summary.limit else f"{UNKNOWN}: nothing was trained yet."))
    return "\n".join(lines)


def format_performance(
    times: StepTimes | None, clips_per_s: float | None, audio_seconds_per_s: float | None, variation: Finding | None
) -> str:
    """The pace of a session in two or three lines: step times, throughput, and what makes them vary."""
    return "\n".join(
        [
            _line("Step time", _format_times(times)),
            _line("Throughput", _format_throughput(clips_per_s, audio_seconds_per_s)),
            *([] if variation is None else [_line("Finding", str(variation))]),
        ]
    )


def _line(title: str, text: str) -> str:
    return "\n".join(wrap_titled(title, text, width=WIDTH, indent=INDENT, breaks_words=False))


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


def _format_throughput(clips_per_s: float | None, audio_seconds_per_s: float | None) -> str:
    return (
        f"{format_number(clips_per_s, 3)} clips/s, {format_number(audio_seconds_per_s, 3)} seconds of audio per second"
    )


def _format_times(times: StepTimes | None) -> str:
    if times is None:
        return UNKNOWN
    return (
        f"{format_step_time(times.p50_s)} p50, {format_step_time(times.p95_s)} p95, mean {format_step_time(times.mean_s)} "
        f"+- {format_step_time(times.std_s)} ({format_step_time(times.min_s)} to {format_step_time(times.max_s)}), variation {format_share(times.variation)}, "
        f"over {format_count(times.steps)} steps ({format_count(times.left_out)} left out)"
    )


def _format_handoffs(flow: Flow) -> list[str]:
    return [
        _line(
            "",
            f"{handoff.name}: ready {format_share(handoff.readiness)}; {flow.name_taker(number)} waits "
            f"{format_share(flow.share(handoff.taker_wait_s))}, {flow.name_giver(number)} waits "
            f"{format_share(flow.share(handoff.giver_wait_s))}",
        )
        for number, handoff in enumerate(flow.handoffs)
    ]


def _format_expected(expected: Expectation) -> str:
    text = f"predicted {format_step_time(expected.predicted_s)} a step"
    if expected.reached_s is None:
        return f"{text}; reached {UNKNOWN}: no step counts yet"
    return (
        f"{text}, reached {format_step_time(expected.reached_s)} ({expected.reached_s / expected.predicted_s - 1:+.0%})"
    )


def _describe_memory(use: MemoryUse) -> str:
    """What a device or process holds, with what is known of its parts."""
    parts = [
        f"{name} {format_bytes(size)}"
        for name, size in (
            ("TensorFlow", use.pool_bytes),
            ("process", use.process_bytes),
            ("context", use.context_bytes),
        )
        if size is not None
    ]
    limit = "" if use.limit_bytes is None else f" of {format_bytes(use.limit_bytes)}"
    return f"{use.device} {format_bytes(use.used_bytes)}{limit}" + (f" ({', '.join(parts)})" if parts else "")


def _format_machine(row: MachineRow | None) -> list[str]:
    if row is None:
        return []
    cards = [_line(f"GPU {card.physical_id}", card.describe()) for card in row.cards]
    return [*cards, _line("Host", row.host.describe())]


def _format_speed_up(summary: RunSummary) -> str:
    if summary.speed_up is None:
        return f"{UNKNOWN}: preparing and training were not both measured"
    return (
        f"{summary.speed_up.reached:.2f}x of at most {summary.speed_up.bound:.2f}x over one device in series "
        f"(preparing {format_step_time(summary.speed_up.prepare_s)}, "
        f"training {format_step_time(summary.speed_up.train_s)} per batch)"
    )
