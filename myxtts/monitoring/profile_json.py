"""A profile as JSON: figures, verdict, and every batch; unknown values are null."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from myxtts.monitoring.card_summary import summarise_cards, summarise_host
from myxtts.monitoring.profile_facts import BatchTimes, Profile
from myxtts.monitoring.profile_verdict import Verdict


def format_json(profile: Profile, verdict: Verdict) -> str:
    """The profile in seconds, bytes and shares of 1."""
    return json.dumps(_dump(profile, verdict), indent=1)


def _dump(profile: Profile, verdict: Verdict) -> dict[str, Any]:
    speed_up = profile.speed_up
    return {
        "run": asdict(profile.run),
        "verdict": {
            "limited_by": str(verdict.limit),
            "stage": verdict.stage,
            "is_balanced": verdict.is_balanced,
            "rules": [asdict(rule) for rule in verdict.rules],
        },
        "costs": {str(part): asdict(cost) for part, cost in profile.costs.items()},
        "step": {**asdict(profile.times), "variation": profile.times.variation},
        "gaps": {"mean_s": profile.wait_s, "longest_s": profile.longest_wait_s},
        "three_runs": {
            "training_alone_s": profile.cached_mean_s,
            "pipeline_alone_s": profile.pipeline_mean_s,
            "together_s": profile.times.mean_s,
            "headspace": profile.headspace,
            "efficiency": profile.efficiency,
            "interference": profile.interference,
        },
        "cached_share": profile.cached_share,
        "speed_up": {"reached": speed_up.reached, "bound": speed_up.bound},
        "utilization": {
            "model": profile.training_share,
            "data": profile.data_share,
            "cards": [asdict(card) for card in summarise_cards(profile.samples)],
            "card_problem": profile.card_problem,
            "host": asdict(summarise_host(profile.samples)),
        },
        "handoffs": [asdict(handoff) for handoff in profile.handoffs],
        "memory": [asdict(memory) for memory in profile.memory],
        "batches": [_dump_batch(batch) for batch in profile.real],
    }


def _dump_batch(batch: BatchTimes) -> dict[str, Any]:
    return {
        "number": batch.number,
        "step_s": batch.step_s,
        "own_s": {str(part): seconds for part, seconds in batch.measure_own().items()},
        "split_s": {str(part): seconds for part, seconds in batch.split_step().items()},
    }
