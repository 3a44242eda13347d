"""Who waits for whom: the stages and hand-offs of a pipeline over a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myxtts.pipeline.stage import StageFacts
from myxtts.pipeline.waiting import HandoffFacts

TRAINING = "train"
"""The name of what takes from the last hand-off. It is no stage of the pipeline: it is what the pipeline is for."""
STARVED = 0.1
"""A stage that waits for its input for a larger share of the time is held up by the one before."""


@dataclass(frozen=True)
class Flow:
    """What the stages and hand-offs of a pipeline did in a stretch of time, each in flow order.

    The last hand-off lies between the last stage and the training, the one before it between the last two stages, and
    so on. Stages left over at the beginning (reading) work in series with the one before the first hand-off.
    """

    elapsed_s: float
    stages: tuple[StageFacts, ...]
    handoffs: tuple[HandoffFacts, ...]

    def name_giver(self, handoff: int) -> str:
        """The stage before a hand-off, by its number."""
        number = len(self.stages) - len(self.handoffs) + handoff
        return self.stages[number].name if number >= 0 else f"before {self.handoffs[handoff].name}"

    def name_taker(self, handoff: int) -> str:
        return TRAINING if handoff == len(self.handoffs) - 1 else self.name_giver(handoff + 1)

    def share(self, seconds: float) -> float | None:
        """A time as a share of the stretch, 0 to 1."""
        return min(1.0, seconds / self.elapsed_s) if self.elapsed_s > 0 else None


def list_stage_shares(flow: Flow) -> list[tuple[str, float | None, float | None, float | None]]:
    """Of every stage its name and the shares of its time that it is busy, waits for a batch, and waits for a free slot; in flow
    order, without the training."""
    first = len(flow.stages) - len(flow.handoffs)
    shares = []
    for number, stage in enumerate(flow.stages):
        after, before = number - first, number - first - 1
        for_batch = flow.share(flow.handoffs[before].taker_wait_s) if before >= 0 else None
        for_slot = flow.share(flow.handoffs[after].giver_wait_s) if after >= 0 else None
        shares.append((stage.name, flow.share(stage.busy_s), for_batch, for_slot))
    return shares


def find_slowest(flow: Flow) -> str:
    """The stage that all others wait for, or `train` when the training never waits for long.

    Followed upstream from the training: a stage that waits for its input is not to blame, the one before it is.
    """
    slowest = TRAINING
    for number in reversed(range(len(flow.handoffs))):
        waiting = flow.share(flow.handoffs[number].taker_wait_s)
        if waiting is None or waiting < STARVED:
            return slowest
        slowest = flow.name_giver(number)
    # Everything before the first hand-off happens one after the other.
    in_series = flow.stages[: len(flow.stages) - len(flow.handoffs) + 1] if flow.handoffs else ()
    return max(in_series, key=lambda stage: stage.busy_s).name if in_series else slowest


def subtract_flow(now: Flow, before: Flow | None) -> Flow:
    """What happened between two readings of facts that are counted from the start."""
    if before is None or now.elapsed_s < before.elapsed_s:
        # The pipeline was opened anew meanwhile.
        return now
    return _sum_flows([(1, now), (-1, before)], now)


def add_flows(flows: Sequence[Flow]) -> Flow | None:
    """Several stretches as one; None when there are none. Stages are those of the last stretch."""
    return _sum_flows([(1, flow) for flow in flows], flows[-1]) if flows else None


def _sum_flows(parts: Sequence[tuple[int, Flow]], named: Flow) -> Flow:
    """The stages and hand-offs of one flow, summed over all that have them, each flow with its sign."""

    def sum_stage(name: str) -> StageFacts:
        own = [(sign, stage) for sign, flow in parts for stage in flow.stages if stage.name == name]
        items, busy_s = (sum(sign * s.items for sign, s in own), sum(sign * s.busy_s for sign, s in own))
        return StageFacts(name, max(0, items), max(0.0, busy_s))

    def sum_handoff(last: HandoffFacts) -> HandoffFacts:
        own = [(sign, flow.elapsed_s, each) for sign, flow in parts for each in flow.handoffs if each.name == last.name]
        elapsed_s = sum(sign * seconds for sign, seconds, _ in own)
        ready_s = sum(sign * seconds * each.readiness for sign, seconds, each in own)
        return HandoffFacts(
            name=last.name,
            items=max(0, sum(sign * each.items for sign, _, each in own)),
            giver_wait_s=max(0.0, sum(sign * each.giver_wait_s for sign, _, each in own)),
            taker_wait_s=max(0.0, sum(sign * each.taker_wait_s for sign, _, each in own)),
            readiness=min(1.0, max(0.0, ready_s / elapsed_s)) if elapsed_s > 0 else last.readiness,
        )

    return Flow(
        sum(sign * flow.elapsed_s for sign, flow in parts),
        tuple(sum_stage(stage.name) for stage in named.stages),
        tuple(sum_handoff(handoff) for handoff in named.handoffs),
    )
