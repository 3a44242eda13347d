"""Figures of several runs, and which of them is the better one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from myxtts.monitoring.compared_run import ComparedRun
from myxtts.monitoring.metrics_rows import TrainRow
from myxtts.monitoring.step_clock import StepTimes
from myxtts.monitoring.words import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_share,
    format_step_time,
)

_WORK = (
    "data.batch_size",
    "training.gradient_accumulation_steps",
    "model.gpt_layers",
    "model.gpt_width",
    "model.dvae_width",
)
"""Settings that say how much work a step is."""


class Better(Enum):
    """Which of two figures is better."""

    LOWER = auto()
    HIGHER = auto()
    NEITHER = auto()


@dataclass(frozen=True)
class Figure:
    """One figure of every run."""

    name: str
    values: tuple[float | None, ...]
    texts: tuple[str, ...]
    best: frozenset[int]
    """Places of the better ones; empty where none is, or where better is not defined."""


def make_figures(runs: Sequence[ComparedRun], *, ranks_losses: bool) -> list[Figure]:
    same_stage = len({run.summary.stage for run in runs}) == 1
    loss = Better.LOWER if ranks_losses else Better.NEITHER
    lower, higher = (Better.LOWER, Better.HIGHER) if same_stage else (Better.NEITHER, Better.NEITHER)
    step_time = lower if do_equal_work(runs) else Better.NEITHER
    step = min(run.summary.step for run in runs)
    last = _find_last_common(runs)

    def make(
        name: str, read: Callable[[ComparedRun], float | None], show: Callable[[Any], str], better: Better
    ) -> Figure:
        return _make_figure(name, [read(run) for run in runs], show, better)

    figures = [
        make("steps", lambda run: run.summary.step, format_count, Better.NEITHER),
        make("time", lambda run: run.summary.elapsed_s, format_duration, Better.NEITHER),
        make(f"train loss at {step}", lambda run: run.find_training_loss(step), format_number, loss),
        make("best val loss", _read_best, format_number, loss),
        make("step time p50", lambda run: _read_time(run, lambda times: times.p50_s), format_step_time, step_time),
        make("step time p95", lambda run: _read_time(run, lambda times: times.p95_s), format_step_time, step_time),
        make("variation", lambda run: _read_time(run, lambda times: times.variation), format_share, lower),
        make("clips per s", lambda run: run.summary.clips_per_s, _format_rate, higher),
        make("audio-s per s", lambda run: run.summary.audio_seconds_per_s, _format_rate, higher),
        make("goodput", lambda run: run.summary.goodput, format_share, higher),
        make("data stall", lambda run: run.summary.data_stall, format_share, lower),
        make("padding", lambda run: run.summary.padding_waste, format_share, lower),
        make("retraces", lambda run: run.summary.retraces, format_count, lower),
        make("memory, data", lambda run: _read_memory(run, "data"), _format_memory, lower),
        make("memory, model", lambda run: _read_memory(run, "model"), _format_memory, lower),
    ]
    if last is not None:
        common = make(f"val loss at {last}", lambda run: dict(run.validation_losses).get(last), format_number, loss)
        figures.insert(3, common)
    return [figure for figure in figures if any(value is not None for value in figure.values)]


def do_equal_work(runs: Sequence[ComparedRun]) -> bool:
    """Whether a step of one is as much work as a step of another."""
    return len({tuple(str(run.settings.get(key)) for key in _WORK) for run in runs}) == 1


def _make_figure(name: str, values: Sequence[float | None], show: Callable[[Any], str], better: Better) -> Figure:
    texts = tuple(show(value) for value in values)
    return Figure(name, tuple(values), texts, _find_best(values, texts, better))


def _find_best(values: Sequence[float | None], texts: Sequence[str], better: Better) -> frozenset[int]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if better is Better.NEITHER or len(known) < 2:
        return frozenset()
    best = min(known) if better is Better.LOWER else max(known)
    shown = texts[values.index(best)]
    # What reads the same is not called better.
    winners = frozenset(number for number, text in enumerate(texts) if text == shown)
    return winners if len(winners) < len(values) else frozenset()


def _find_last_common(runs: Sequence[ComparedRun]) -> int | None:
    common = set.intersection(*({step for step, _ in run.validation_losses} for run in runs))
    return max(common, default=None)


def _read_best(run: ComparedRun) -> float | None:
    return run.summary.best_validation[1] if run.summary.best_validation is not None else None


def _read_memory(run: ComparedRun, role: str) -> float | None:
    """The most a role's device held, in bytes."""
    rows = [row for row in run.metrics.rows if isinstance(row, TrainRow)]
    known = [use.used_bytes for row in rows for use in row.memory if use.device.startswith(role)]
    return max((size for size in known if size is not None), default=None)


def _format_memory(size_bytes: float | None) -> str:
    return format_bytes(None if size_bytes is None else int(size_bytes))


def _format_rate(value: float | None) -> str:
    return format_number(value, 3)


def _read_time(run: ComparedRun, read: Callable[[StepTimes], float | None]) -> float | None:
    return None if run.summary.times is None else read(run.summary.times)
