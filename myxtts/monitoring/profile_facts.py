"""What a profile has measured, the stage that limits the run, and every rule that it breaks, with the change worth trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from myxtts.monitoring.clock import ENOUGH_STEPS, StepTimes, measure_durations
from myxtts.monitoring.findings import (
    HIGH_VARIATION,
    Settings,
    advise_faster,
    advise_fewer_launches,
    advise_steadier,
)
from myxtts.monitoring.metrics import MemoryUse
from myxtts.monitoring.sampler import MachineSample
from myxtts.pipeline.batch import BatchSpans, Span
from myxtts.units import format_share, format_step_time

MOST_LOAD, MOST_PREPARATION, MOST_TRANSFER = 0.20, 0.20, 0.15
MOST_DATA_BUSY, LEAST_TRAINING = 0.80, 0.70
LAUNCH_S = 5e-6
"""What a GPU takes to start a kernel, however small: 4 to 10 us are known."""
LAUNCH_BOUND = 0.50
"""Launches that take a larger share of a step's time are what fills it."""
STALLED = 0.10
"""A training beside its pipeline that waits for a smaller share of its time is what limits the run itself."""

NO_BOTTLENECK = "NO MAJOR BOTTLENECKS DETECTED"


class StepPart(StrEnum):
    """What a step's time goes into, by the names users know."""

    LOAD = "Data Load"
    PREPARE = "Preprocess"
    TRANSFER = "GPU Transfer"
    TRAIN = "Training"
    HAND_OFF = "Hand-off"


STAGES = dict(zip(StepPart, ("read", "prepare", "transfer", "train"), strict=False))
"""Part -> the stage that does it, as the pipeline calls it. Handing on is nobody's."""


class BatchTimes(NamedTuple):
    """One batch from its files to the end of its step."""

    number: int
    spans: BatchSpans
    wait: Span
    train: Span
    bucket: int = 0
    has_traced: bool = False

    @property
    def step_s(self) -> float:
        return self.train.ended_s - self.wait.began_s

    def measure_own(self) -> dict[StepPart, float]:
        """How long each stage worked on it."""
        return {part: span.seconds for part, span in zip(STAGES, (*self.spans, self.train), strict=True)}

    def split_step(self) -> dict[StepPart, float]:
        """Where its step's time went: training, and the wait by what was being done to the batch meanwhile."""
        began_s, ended_s = self.wait
        parts = {
            part: max(0.0, min(ended_s, span.ended_s) - max(began_s, span.began_s))
            for part, span in zip(STAGES, self.spans, strict=False)
        }
        parts[StepPart.TRAIN] = self.train.seconds
        return {**parts, StepPart.HAND_OFF: max(0.0, self.step_s - sum(parts.values()))}


class Launches(NamedTuple):
    """Kernels that the step launches; on a processor, that it would."""

    gradients: int
    """Of one batch."""
    update: int
    is_compiled: bool
    """Whether by XLA, which launches far fewer."""


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

    @property
    def has_two_devices(self) -> bool:
        return self.mode != "single"

    @property
    def is_on_gpu(self) -> bool:
        return "GPU" in self.model_device

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
    """The stage's work on a batch, hidden or not; of steps that are waited for."""
    own_std_s: float
    step_s: float
    """Of it, what a step had to wait for; of steps that nobody waits for."""
    step_std_s: float
    share: float


class SpeedUp(NamedTuple):
    """Preparing and training side by side, against one after the other."""

    reached: float
    """Time of both in series over the time a batch really took."""
    bound: float
    """1 + min/max: no way of overlapping the two gains more."""


@dataclass(frozen=True)
class Profile:
    """The three runs, and what was seen beside them."""

    run: ProfiledRun
    synced: tuple[BatchTimes, ...]
    """Pipeline and training together, one half: every step is waited for, so that each part's time is its own. A device that is
    fed one step at a time idles meanwhile, and the pipeline gets ahead: how long a step really takes, this does not say."""
    free: tuple[BatchTimes, ...]
    """The other half: nobody waits for a step, as in a run. A step's time here is the host's."""
    step_s: float
    """Of those: the true time of a step."""
    pipeline: tuple[BatchTimes, ...]
    """The pipeline without training: every batch is taken and thrown away."""
    cached_s: tuple[float, ...]
    """Training without the pipeline: the same batches, already on the device, again and again. Nobody waits for a single one."""
    left_out: int
    """Batches of both halves that filled the pipeline, or whose step traced."""
    launches: Launches | None = None
    cache_hits: int = 0
    cache_misses: int = 0
    memory: tuple[MemoryUse, ...] = ()
    samples: tuple[MachineSample, ...] = field(default=(), repr=False)
    card_problem: str | None = None

    @cached_property
    def times(self) -> StepTimes:
        """Of the steps that were waited for."""
        times = measure_durations([batch.step_s for batch in self.synced], self.left_out)
        assert times is not None, "a profile has steps"
        return times

    @cached_property
    def costs(self) -> dict[StepPart, Cost]:
        """By part, in the order of the flow."""
        costs, owns = {}, [batch.measure_own() for batch in self.synced]
        synced, free = ([batch.split_step() for batch in batches] for batches in (self.synced, self.free))
        # The host's wait tells whom it is for, and may be longer than that of the device.
        stalled = self.stall_s / self.wait_s if self.wait_s else 0.0
        for part in StepPart:
            own_N = np.array([own.get(part, 0.0) for own in owns])
            step_s = float(np.mean([each[part] for each in free])) * stalled
            if part is StepPart.TRAIN:
                step_s = self.step_s - self.stall_s
            std_s = float(np.std([each[part] for each in synced]))
            costs[part] = Cost(float(own_N.mean()), float(own_N.std()), step_s, std_s, step_s / self.step_s)
        return costs

    @property
    def cached_share(self) -> float | None:
        """Of the clips, those whose codes were found; None without a cache."""
        clips = self.cache_hits + self.cache_misses
        return self.cache_hits / clips if clips else None

    @cached_property
    def wait_s(self) -> float:
        """How long the host waits for a batch that nobody has ready, where it waits for nothing else."""
        return float(np.mean([batch.wait.seconds for batch in self.free]))

    @property
    def longest_wait_s(self) -> float:
        return max(batch.wait.seconds for batch in self.free)

    @property
    def stall_s(self) -> float:
        """How long the model device stands still for a batch: no longer than the host waits, since it may have steps to do
        meanwhile, and no longer than a step takes beyond the training alone."""
        return min(self.wait_s, max(0.0, self.step_s - self.cached_mean_s))

    @property
    def launch_s(self) -> float | None:
        """What the launches of a batch take a GPU, or would; None where they were not counted."""
        if self.launches is None:
            return None
        return LAUNCH_S * (self.launches.gradients + self.launches.update / self.run.accumulation)

    @property
    def training_share(self) -> float:
        """How busy the model device is, as the training sees it."""
        return self.costs[StepPart.TRAIN].share

    @property
    def data_share(self) -> float | None:
        """How busy the data device is; None where the model device prepares as well."""
        return min(1.0, self.costs[StepPart.PREPARE].own_s / self.step_s) if self.run.has_two_devices else None

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
        return max(0.0, 1 - self.cached_mean_s / self.step_s)

    @property
    def speed_up(self) -> SpeedUp:
        """What a second device can gain over one that does everything in turn, and what is reached."""
        read_s, own_s, _, train_s, _ = (cost.own_s for cost in self.costs.values())
        both = sorted((read_s + own_s, train_s))
        return SpeedUp(sum(both) / self.step_s, 1 + both[0] / both[1])


@dataclass(frozen=True)
class BrokenRule:
    """One broken rule."""

    title: str
    evidence: str
    advice: tuple[str, ...]
    """Each a whole sentence; the first is worth trying first."""
    part: StepPart
    share: float


@dataclass(frozen=True)
class Verdict:
    """What limits the run, and the rules it breaks, the dearest first."""

    limit: StepPart
    rules: tuple[BrokenRule, ...]
    is_balanced: bool
    """Nothing is broken and the training takes most of the time."""

    @property
    def stage(self) -> str:
        """The limiting stage, as the pipeline calls it."""
        return STAGES[self.limit]


def judge_profile(profile: Profile, settings: Settings) -> Verdict:
    """The verdict on a profile.

    The limit is the stage the training waits for longest, or the training itself where it hardly waits; on one device, where
    everything takes its turn, the stage that takes most of a step.
    """
    rules = tuple(sorted(_list_broken(profile, settings), key=lambda rule: -rule.share))
    limit = max(STAGES, key=lambda part: profile.costs[part].step_s)
    if profile.run.has_two_devices:
        waits = [StepPart.LOAD, StepPart.PREPARE, StepPart.TRANSFER]
        is_stalled = profile.stall_s / profile.step_s >= STALLED
        limit = max(waits, key=lambda part: profile.costs[part].step_s) if is_stalled else StepPart.TRAIN
    return Verdict(limit, rules, not rules and profile.training_share > LEAST_TRAINING)


def _list_broken(profile: Profile, settings: Settings) -> Iterator[BrokenRule]:
    run, busy, costs = profile.run, profile.data_share, profile.costs

    def break_rule(part: StepPart, title: str, what: str, flag_does: str, *advice: str, rule: str = "") -> BrokenRule:
        share, flag = costs[part].share, advise_faster(STAGES[part], run.mode, settings)
        evidence = f"the training waits for {what} {format_share(share)} of the time{rule}"
        return BrokenRule(title, evidence, (*([f"{flag_does}: {flag}"] if flag else []), *advice), part, share)

    if costs[StepPart.LOAD].share > MOST_LOAD:
        yield break_rule(
            StepPart.LOAD, "DATA LOADING BOTTLENECK", "files", "More readers",
            "Put the corpus on an SSD or into memory; a network share or a hard disk is often the reason.",
            "Convert compressed recordings to 16-bit WAV at 22,050 Hz: they need no decoding and no resampling.",
            rule=f" (rule: at most {MOST_LOAD:.0%})",
        )  # fmt: skip
    # Both that the training waits for preparation, and that the data device has no reserve.
    is_saturated = busy is not None and busy > MOST_DATA_BUSY
    if costs[StepPart.PREPARE].share > MOST_PREPARATION or is_saturated:
        advice = []
        if profile.cached_share is not None:
            advice.append("Codes are kept already: once a first epoch has filled the cache, profile again.")
        if busy is not None and not run.is_rehearsal and run.mode != "split":
            advice.append("If one card is faster, let that one prepare: exchange --data-gpu and --model-gpu.")
        limit = f" (rule: at most {MOST_DATA_BUSY:.0%})" if is_saturated else ""
        rule = break_rule(
            StepPart.PREPARE, "DATA DEVICE SATURATED" if is_saturated else "PREPROCESSING BOTTLENECK", "preparation",
            "Prepare less often, or elsewhere", *advice,
            rule="" if busy is None else f"; the data device is busy {format_share(busy)} of it{limit}",
        )  # fmt: skip
        nothing = ("No setting would change that here: only a faster device would prepare faster.",)
        yield replace(rule, advice=rule.advice or nothing)
    if costs[StepPart.TRANSFER].share > MOST_TRANSFER:
        copies = (
            "Look at how the cards are connected (`myxtts devices`): NODE and SYS are slow; one card, or cards on one "
            "PCIe root, copy faster."
        )
        if run.is_rehearsal:
            copies = "A rehearsal copies within host memory, which tells nothing about cards."
        elif not run.has_two_devices:
            copies = "Batches come from host memory over PCIe: a slot with more lanes copies faster."
        yield break_rule(
            StepPart.TRANSFER, "GPU TRANSFER BOTTLENECK", "copies", "More batches ahead", copies,
            rule=f" (rule: at most {MOST_TRANSFER:.0%})",
        )  # fmt: skip
    yield from _judge_launches(profile, settings)
    times = profile.times
    if times.steps >= ENOUGH_STEPS and times.variation is not None and times.variation > HIGH_VARIATION:
        part = max(STAGES, key=lambda part: costs[part].step_std_s)
        flag = advise_steadier(STAGES[part], run.mode, settings)
        steadier = f"Make steps more even: {flag}" if flag else f"No setting would make {part} more even here."
        evidence = (
            f"steps vary by {format_share(times.variation)} of their mean (rule: at most {HIGH_VARIATION:.0%}), most of it from "
            f"{part} ({format_step_time(costs[part].step_s)} +- {format_step_time(costs[part].step_std_s)} of a step)"
        )
        yield BrokenRule("HIGH TIMING VARIATION", evidence, (steadier,), part, max(0.0, 1 - times.p50_s / times.mean_s))


def _judge_launches(profile: Profile, settings: Settings) -> Iterator[BrokenRule]:
    """The rule that a step of many small kernels breaks: the card is busy starting them."""
    launches, launch_s = profile.launches, profile.launch_s
    if launches is None or launch_s is None or not profile.run.is_on_gpu:
        return
    share = min(1.0, launch_s / profile.cached_mean_s)
    if share > LAUNCH_BOUND:
        evidence = (
            f"a batch starts {launch_s / LAUNCH_S:,.0f} small kernels; at about {LAUNCH_S * 1e6:.0f} us "
            f"each they fill {format_share(share)} of the {format_step_time(profile.cached_mean_s)} that it takes without its pipeline "
            f"(rule: at most {LAUNCH_BOUND:.0%})"
        )
        advice = advise_fewer_launches(settings, is_compiled=launches.is_compiled)
        yield BrokenRule("LAUNCH-BOUND TRAINING", evidence, advice, StepPart.TRAIN, share * profile.training_share)
