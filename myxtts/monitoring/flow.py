"""Who waits for whom: the stages and hand-offs of a pipeline over a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myxtts.pipeline.slots import HandoffFacts
from myxtts.pipeline.worker import WorkerFacts

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
    stages: tuple[WorkerFacts, ...]
    handoffs: tuple[HandoffFacts, ...]

    def find_giver(self, handoff: int) -> WorkerFacts | None:
        """The stage before a hand-off, by its number; None where the facts do not say."""
        number = len(self.stages) - len(self.handoffs) + handoff
        return self.stages[number] if number >= 0 else None

    def name_giver(self, handoff: int) -> str:
        giver = self.find_giver(handoff)
        return giver.name if giver is not None else f"before {self.handoffs[handoff].name}"

    def name_taker(self, handoff: int) -> str:
        return TRAINING if handoff == len(self.handoffs) - 1 else self.name_giver(handoff + 1)

    def share(self, seconds: float) -> float | None:
        """A time as a share of the stretch, 0 to 1."""
        return min(1.0, seconds / self.elapsed_s) if self.elapsed_s > 0 else None


@dataclass(frozen=True)
class StageShares:
    """What one stage did with its time, as shares of it."""

    name: str
    busy: float | None
    waits_for_batch: float | None
    waits_for_slot: float | None


def list_stage_shares(flow: Flow) -> list[StageShares]:
    """Busy and waiting of every stage, in flow order, without the training."""
    first = len(flow.stages) - len(flow.handoffs)
    shares = []
    for number, stage in enumerate(flow.stages):
        after, before = number - first, number - first - 1
        shares.append(
            StageShares(
                stage.name,
                flow.share(stage.busy_s),
                flow.share(flow.handoffs[before].taker_wait_s) if before >= 0 else None,
                flow.share(flow.handoffs[after].giver_wait_s) if after >= 0 else None,
            )
        )
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
    stages = {stage.name: stage for stage in before.stages}
    handoffs = {handoff.name: handoff for handoff in before.handoffs}
    return Flow(
        now.elapsed_s - before.elapsed_s,
        tuple(_subtract_stage(stage, stages.get(stage.name)) for stage in now.stages),
        tuple(_subtract_handoff(now, handoff, before, handoffs.get(handoff.name)) for handoff in now.handoffs),
    )


def add_flows(flows: Sequence[Flow]) -> Flow | None:
    """Several stretches as one; None when there are none. Stages are those of the last stretch."""
    if not flows:
        return None
    elapsed_s = sum(flow.elapsed_s for flow in flows)
    return Flow(
        elapsed_s,
        tuple(_add_stages([s for flow in flows for s in flow.stages if s.name == stage.name]) for stage in flows[-1].stages),
        tuple(
            _add_handoffs([(flow.elapsed_s, h) for flow in flows for h in flow.handoffs if h.name == handoff.name])
            for handoff in flows[-1].handoffs
        ),
    )  # fmt: skip


def _subtract_stage(now: WorkerFacts, before: WorkerFacts | None) -> WorkerFacts:
    if before is None:
        return now
    return WorkerFacts(now.name, max(0, now.items - before.items), max(0.0, now.busy_s - before.busy_s))


def _subtract_handoff(now: Flow, facts: HandoffFacts, before: Flow, earlier: HandoffFacts | None) -> HandoffFacts:
    if earlier is None:
        return facts
    window_s = now.elapsed_s - before.elapsed_s
    ready_s = facts.readiness * now.elapsed_s - earlier.readiness * before.elapsed_s
    return HandoffFacts(
        name=facts.name,
        items=max(0, facts.items - earlier.items),
        giver_wait_s=max(0.0, facts.giver_wait_s - earlier.giver_wait_s),
        taker_wait_s=max(0.0, facts.taker_wait_s - earlier.taker_wait_s),
        readiness=min(1.0, max(0.0, ready_s / window_s)) if window_s > 0 else facts.readiness,
    )


def _add_stages(parts: Sequence[WorkerFacts]) -> WorkerFacts:
    return WorkerFacts(parts[0].name, sum(part.items for part in parts), sum(part.busy_s for part in parts))


def _add_handoffs(parts: Sequence[tuple[float, HandoffFacts]]) -> HandoffFacts:
    elapsed_s = sum(seconds for seconds, _ in parts)
    ready_s = sum(seconds * facts.readiness for seconds, facts in parts)
    return HandoffFacts(
        name=parts[0][1].name,
        items=sum(facts.items for _, facts in parts),
        giver_wait_s=sum(facts.giver_wait_s for _, facts in parts),
        taker_wait_s=sum(facts.taker_wait_s for _, facts in parts),
        readiness=ready_s / elapsed_s if elapsed_s > 0 else 0.0,
    )
