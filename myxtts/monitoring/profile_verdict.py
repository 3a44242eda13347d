"""What a profile shows: the stage that limits the run, and every rule that it breaks, with the change worth trying."""

from __future__ import annotations

from dataclasses import dataclass

from myxtts.monitoring.advice import advise_faster, advise_steadier
from myxtts.monitoring.findings import HIGH_VARIATION
from myxtts.monitoring.profile_facts import STAGES, Part, Profile
from myxtts.monitoring.progress import ENOUGH_STEPS
from myxtts.monitoring.settings_in_force import Settings
from myxtts.monitoring.words import format_share, format_step_time

MOST_LOAD = 0.20
MOST_PREPARATION = 0.20
MOST_TRANSFER = 0.15
MOST_DATA_BUSY = 0.80
LEAST_TRAINING = 0.70
STALLED = 0.10
"""A training beside its pipeline that waits for a smaller share of its time is what limits the run itself."""

NO_BOTTLENECK = "NO MAJOR BOTTLENECKS DETECTED"


@dataclass(frozen=True)
class Rule:
    """One broken rule."""

    title: str
    evidence: str
    advice: tuple[str, ...]
    """Each a whole sentence; the first is worth trying first."""
    part: Part
    share: float
    """Of the step that is at stake, 0 to 1."""


@dataclass(frozen=True)
class Verdict:
    """What limits the run, and the rules it breaks, the dearest first."""

    limit: Part
    rules: tuple[Rule, ...]
    is_balanced: bool
    """Nothing is broken and the training takes most of the time."""

    @property
    def stage(self) -> str:
        """The limiting stage, as the pipeline calls it."""
        return STAGES[self.limit]


def judge_profile(profile: Profile, settings: Settings) -> Verdict:
    """The verdict on a profile."""
    found = [
        _judge_load(profile, settings),
        _judge_preparation(profile, settings),
        _judge_transfer(profile, settings),
        _judge_variation(profile, settings),
    ]
    rules = sorted((rule for rule in found if rule is not None), key=lambda rule: -rule.share)
    return Verdict(_find_limit(profile), tuple(rules), not rules and profile.training_share > LEAST_TRAINING)


def _find_limit(profile: Profile) -> Part:
    """The stage the training waits for longest, or the training itself when it hardly waits.

    On one device, where everything takes its turn, the stage that takes most of a step.
    """
    stages = [Part.LOAD, Part.PREPARE, Part.TRANSFER]
    if not profile.run.has_two_devices:
        stages.append(Part.TRAIN)
    elif profile.wait_s / profile.times.mean_s < STALLED:
        return Part.TRAIN
    return max(stages, key=lambda part: profile.costs[part].step_s)


def find_unsteady_part(profile: Profile) -> Part:
    """The part whose time differs most from step to step."""
    return max(STAGES, key=lambda part: profile.costs[part].step_std_s)


def _judge_load(profile: Profile, settings: Settings) -> Rule | None:
    share = profile.costs[Part.LOAD].share
    if share <= MOST_LOAD:
        return None
    flag = advise_faster("read", profile.run.mode, settings)
    return Rule(
        "DATA LOADING BOTTLENECK",
        f"the training waits for files {format_share(share)} of the time (rule: at most {MOST_LOAD:.0%})",
        (
            *([f"More readers: {flag}"] if flag else []),
            "Put the corpus on an SSD or into memory; a network share or a hard disk is often the reason.",
            "Convert compressed recordings to 16-bit WAV at 22,050 Hz: they need no decoding and no resampling.",
        ),
        Part.LOAD,
        share,
    )


def _judge_preparation(profile: Profile, settings: Settings) -> Rule | None:
    """Both that the training waits for preparation, and that the data device has no reserve."""
    share, busy = profile.costs[Part.PREPARE].share, profile.data_share
    is_saturated = busy is not None and busy > MOST_DATA_BUSY
    if share <= MOST_PREPARATION and not is_saturated:
        return None
    evidence = f"the training waits for preparation {format_share(share)} of the time"
    if busy is not None:
        rule = f" (rule: at most {MOST_DATA_BUSY:.0%})" if is_saturated else ""
        evidence = f"{evidence}; the data device is busy {format_share(busy)} of it{rule}"
    flag = advise_faster("prepare", profile.run.mode, settings)
    advice = [f"Prepare less often, or elsewhere: {flag}"] if flag else []
    if profile.cached_share is not None:
        advice.append("Codes are kept already: once a first epoch has filled the cache, profile again.")
    if busy is not None and not profile.run.is_rehearsal and profile.run.mode != "split":
        advice.append("If one card is faster, let that one prepare: exchange --data-gpu and --model-gpu.")
    if not advice:
        advice.append("No setting would change that here: only a faster device would prepare faster.")
    return Rule(
        "DATA DEVICE SATURATED" if is_saturated else "PREPROCESSING BOTTLENECK",
        evidence,
        tuple(advice),
        Part.PREPARE,
        share,
    )


def _judge_transfer(profile: Profile, settings: Settings) -> Rule | None:
    share = profile.costs[Part.TRANSFER].share
    if share <= MOST_TRANSFER:
        return None
    flag = advise_faster("transfer", profile.run.mode, settings)
    return Rule(
        "GPU TRANSFER BOTTLENECK",
        f"the training waits for copies {format_share(share)} of the time (rule: at most {MOST_TRANSFER:.0%})",
        (*([f"More batches ahead: {flag}"] if flag else []), _explain_copies(profile)),
        Part.TRANSFER,
        share,
    )


def _explain_copies(profile: Profile) -> str:
    if profile.run.is_rehearsal:
        return "A rehearsal copies within host memory, which tells nothing about cards."
    if not profile.run.has_two_devices:
        return "Batches come from host memory over PCIe: a slot with more lanes copies faster."
    return (
        "Look at how the cards are connected (`myxtts devices`): NODE and SYS are slow; one card, or cards on one "
        "PCIe root, copy faster."
    )


def _judge_variation(profile: Profile, settings: Settings) -> Rule | None:
    times = profile.times
    if times.steps < ENOUGH_STEPS or times.variation is None or times.variation <= HIGH_VARIATION:
        return None
    part = find_unsteady_part(profile)
    cost = profile.costs[part]
    flag = advise_steadier(STAGES[part], profile.run.mode, settings)
    lost_share = max(0.0, 1 - times.p50_s / times.mean_s)
    return Rule(
        "HIGH TIMING VARIATION",
        f"steps vary by {format_share(times.variation)} of their mean (rule: at most {HIGH_VARIATION:.0%}), most of it from "
        f"{part} ({format_step_time(cost.step_s)} +- {format_step_time(cost.step_std_s)} of a step)",
        (f"Make steps more even: {flag}" if flag else f"No setting would make {part} more even here.",),
        part,
        lost_share,
    )
