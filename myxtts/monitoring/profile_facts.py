"""What a profile has measured: when each batch was read, prepared, copied and trained on, and what the training waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from myxtts.monitoring.machine_sampler import MachineSample
from myxtts.monitoring.speed_up import SpeedUp
from myxtts.monitoring.step_clock import StepTimes, measure_durations
from myxtts.pipeline.batch_spans import BatchSpans, Span
from myxtts.pipeline.waiting import HandoffFacts


class Part(StrEnum):
    """What a step's time goes into, by the names users know."""

    LOAD = "Data Load"
    PREPARE = "Preprocess"
    TRANSFER = "GPU Transfer"
    TRAIN = "Training"
    HAND_OFF = "Hand-off"


STAGES: dict[Part, str] = {Part.LOAD: "read", Part.PREPARE: "prepare", Part.TRANSFER: "transfer", Part.TRAIN: "train"}
"""Part -> the stage that does it, as the pipeline calls it."""


class BatchTimes(NamedTuple):
    """One batch from its files to the end of its step."""

    number: int
    spans: BatchSpans
    wait: Span
    """Of the training, for this batch."""
    train: Span

    @property
    def step_s(self) -> float:
        return self.train.ended_s - self.wait.began_s

    def measure_own(self) -> dict[Part, float]:
        """How long each stage worked on it."""
        spans = self.spans
        return {
            Part.LOAD: spans.read.seconds,
            Part.PREPARE: spans.prepare.seconds,
            Part.TRANSFER: spans.transfer.seconds,
            Part.TRAIN: self.train.seconds,
        }

    def split_step(self) -> dict[Part, float]:
        """Where its step's time went: training, and the wait by what was being done to the batch meanwhile."""
        parts = {
            Part.LOAD: _overlap(self.wait, self.spans.read),
            Part.PREPARE: _overlap(self.wait, self.spans.prepare),
            Part.TRANSFER: _overlap(self.wait, self.spans.transfer),
            Part.TRAIN: self.train.seconds,
        }
        return {**parts, Part.HAND_OFF: max(0.0, self.step_s - sum(parts.values()))}


@dataclass(frozen=True)
class RoleMemoryFacts:
    """What one role holds at the end of a profile; unknown is None."""

    role: str
    device: str
    used_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    pool_bytes: int | None = None
    """What TensorFlow itself holds on the device."""
    process_bytes: int | None = None
    """What the process holds there, as the driver sees it: a limited pool as a whole, and the CUDA context."""
    context_bytes: int | None = None
    """Of that, the CUDA context and the libraries' own; no limit holds for it."""


@dataclass(frozen=True)
class ProfiledRun:
    """What was profiled, in words."""

    mode: str
    is_rehearsal: bool
    data_device: str
    model_device: str
    batch_size: int
    accumulation: int
    model: str
    corpus: str
    notes: tuple[str, ...] = ()
    """What differs from a run: a codec of random weights, for example."""

    @property
    def has_two_devices(self) -> bool:
        return self.mode != "single"

    @property
    def roles(self) -> str:
        """Which device prepares and which trains. Each process counts its own devices, so two may have one name."""
        if not self.has_two_devices:
            return f"{self.model_device} prepares and trains"
        where = "" if self.mode == "dual" else " in a process of its own"
        return f"{self.data_device} prepares{where}, {self.model_device} trains"


@dataclass(frozen=True)
class Cost:
    """What one part costs, in seconds per batch."""

    own_s: float
    """The stage's work on a batch, hidden or not."""
    own_std_s: float
    step_s: float
    """Of it, what the step had to wait for."""
    step_std_s: float
    share: float
    """Of the step, 0 to 1."""


@dataclass(frozen=True)
class Profile:
    """The three runs, and what was seen beside them."""

    run: ProfiledRun
    real: tuple[BatchTimes, ...]
    """Pipeline and training together."""
    pipeline: tuple[BatchTimes, ...]
    """The pipeline without training: every batch is taken and thrown away."""
    cached_s: tuple[float, ...]
    """Training without the pipeline: the same batches, already on the device, again and again."""
    left_out: int
    """Batches of the real run that filled the pipeline, or whose step traced."""
    handoffs: tuple[HandoffFacts, ...] = ()
    cache_hits: int = 0
    """Clips of the real run whose codes were found."""
    cache_misses: int = 0
    memory: tuple[RoleMemoryFacts, ...] = ()
    samples: tuple[MachineSample, ...] = field(default=(), repr=False)
    card_problem: str | None = None

    @cached_property
    def times(self) -> StepTimes:
        """Of the steps that count."""
        times = measure_durations([batch.step_s for batch in self.real], self.left_out)
        assert times is not None, "a profile has steps"
        return times

    @cached_property
    def costs(self) -> dict[Part, Cost]:
        """By part, in the order of the flow."""
        own = [batch.measure_own() for batch in self.real]
        split = [batch.split_step() for batch in self.real]
        return {part: _measure_cost(part, own, split, self.times.mean_s) for part in Part}

    @property
    def cached_share(self) -> float | None:
        """Of the clips, those whose codes were found; None without a cache."""
        clips = self.cache_hits + self.cache_misses
        return self.cache_hits / clips if clips else None

    @property
    def wait_s(self) -> float:
        """How long the training waits, per batch."""
        return float(np.mean([batch.wait.seconds for batch in self.real]))

    @property
    def longest_wait_s(self) -> float:
        return max(batch.wait.seconds for batch in self.real)

    @property
    def training_share(self) -> float:
        """How busy the model device is, as the training sees it."""
        return self.costs[Part.TRAIN].share

    @property
    def data_share(self) -> float | None:
        """How busy the data device is; None where the model device prepares as well."""
        return min(1.0, self.costs[Part.PREPARE].own_s / self.times.mean_s) if self.run.has_two_devices else None

    @property
    def cached_mean_s(self) -> float:
        return float(np.mean(self.cached_s))

    @property
    def pipeline_mean_s(self) -> float:
        """Time per batch of the pipeline alone."""
        return float(np.mean([batch.wait.seconds for batch in self.pipeline]))

    @property
    def headspace(self) -> float:
        """The most a faster pipeline could ever gain, as a share of the step."""
        return max(0.0, 1 - self.cached_mean_s / self.times.mean_s)

    @property
    def efficiency(self) -> float:
        """The slower of training and pipeline alone, by the time of both together. 1.0 is the limit."""
        slowest_s = max(self.cached_mean_s, self.pipeline_mean_s)
        if not self.run.has_two_devices:
            slowest_s = self.cached_mean_s + self.pipeline_mean_s
        return slowest_s / self.times.mean_s

    @property
    def interference(self) -> float:
        """How much longer a batch trains beside the pipeline than alone, as a share."""
        return self.costs[Part.TRAIN].own_s / self.cached_mean_s - 1

    @property
    def speed_up(self) -> SpeedUp:
        """What a second device can gain over one that does everything in turn, and what is reached."""
        prepare_s = self.costs[Part.LOAD].own_s + self.costs[Part.PREPARE].own_s
        train_s = self.costs[Part.TRAIN].own_s
        return SpeedUp(prepare_s, train_s, (prepare_s + train_s) / self.times.mean_s)


def _measure_cost(
    part: Part, own: Sequence[dict[Part, float]], split: Sequence[dict[Part, float]], mean_step_s: float
) -> Cost:
    own_N = np.array([times.get(part, 0.0) for times in own])
    step_N = np.array([times[part] for times in split])
    return Cost(
        own_s=float(own_N.mean()),
        own_std_s=float(own_N.std()),
        step_s=float(step_N.mean()),
        step_std_s=float(step_N.std()),
        share=float(step_N.mean()) / mean_step_s,
    )


def _overlap(first: Span, second: Span) -> float:
    return max(0.0, min(first.ended_s, second.ended_s) - max(first.began_s, second.began_s))
