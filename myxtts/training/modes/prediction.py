"""What a step would take in each mode, from what its stages were measured to cost. Arithmetic only, no TensorFlow.

With preparation p, transfer x and training t per batch, one device takes what was measured for one, about p + t. Two devices
overlap: the slowest stage counts in full and of the others the share that this machine was measured not to hide, which is
near 0 on two cards and near 1 where both "devices" are the same cores. Codes that are kept take their time off p in every
epoch but the first. Two devices that both train do half the clips each, wait for the slower of them, and add up their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Layout(StrEnum):
    """Who prepares and who trains; the simplest first."""

    SINGLE = "single"
    DUAL = "dual"
    ISOLATED = "isolated"
    DATA_PARALLEL = "data-parallel"


WORKERS = 2
"""Processes that train in the data-parallel layout: one for each of the two devices there is a choice for."""
WINDOWS = 2
"""In which a mode is timed; the faster counts. Eight batches are soon spoilt by a hiccup of the machine, and never sped up."""


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Seconds per batch, as measured."""

    prepare_s: float
    """Reading included, on the data device, with nothing beside it."""
    transfer_s: float
    """To the model device, inside one process."""
    train_s: float
    """With nothing beside it."""
    single_s: float
    """One device that prepares and trains."""
    dual_s: float
    """Two devices of one process, side by side."""
    codes_s: float = 0.0
    """Of preparing, what need not be done again once codes are kept."""
    pack_s: float = 0.0
    """Into the shared memory between two processes."""
    unpack_s: float = 0.0
    exchange_s: float = 0.0
    """Of all gradients between two devices that both train; once per update, not per batch. Estimated, not measured."""
    half_share: float = 0.5
    """Of the training time of a whole batch, what half of its clips take. Small batches do not fill a card."""
    pace: float = 1.0
    """What the device that prepares takes for the same products of matrices as the one that trains, as a multiple."""
    crowding: float = 0.0
    """Of such products on both devices at once, the share of one that the other did not hide, 0 to 1."""

    @property
    def unhidden(self) -> float:
        """Of the work beside the slowest stage, the share that the measured overlap did not hide. 0 is perfect."""
        stages = (self.prepare_s, self.transfer_s, self.train_s)
        beside = sum(stages) - max(stages)
        return max(0.0, (self.dual_s - max(stages)) / beside) if beside > 0 else 0.0


@dataclass(frozen=True)
class Candidate:
    """A way to run."""

    layout: Layout
    keeps_codes: bool = False

    def __str__(self) -> str:
        return f"{self.layout}, codes kept" if self.keeps_codes else str(self.layout)


@dataclass(frozen=True)
class Circumstances:
    """What decides about candidates besides their speed."""

    accumulation: int = 1
    """Batches of an update."""
    epochs: int = 1
    """Still to come."""
    obstacles: Mapping[Layout, str] = field(default_factory=dict)
    """Layouts that cannot be had here, and why."""
    parallel_remedy: str | None = None
    """How to have both devices train, as the end of a sentence; None unless only how this program was started is against it."""
    kept_obstacle: str | None = None
    """Why codes cannot be kept, as a sentence; None where they can be."""
    online_obstacle: str | None = None
    """Why codes are kept in any case; None where that is open."""
    policy: str = "disk"
    """Where codes are kept if they are: on disk or in memory."""
    place: str = ""
    """The room that they take, and where."""


@dataclass(frozen=True)
class Prediction:
    """What one candidate would take."""

    candidate: Candidate
    step_s: float
    """Per update."""
    obstacle: str | None = None
    """Why it cannot be chosen."""


def predict_batch_s(costs: StageCosts, candidate: Candidate, around: Circumstances) -> float:
    """Seconds per batch of a candidate, on average over the epochs to come."""
    saved_s = _find_codes(candidate, around) * min(costs.codes_s, costs.prepare_s)
    prepare_s, single_s = costs.prepare_s - saved_s, max(costs.train_s, costs.single_s - saved_s)
    match candidate.layout:
        case Layout.SINGLE:
            return single_s
        case Layout.DUAL:
            return _overlap(costs.unhidden, prepare_s, costs.transfer_s, costs.train_s)
        case Layout.ISOLATED:
            transfer_s = costs.transfer_s + costs.unpack_s
            return _overlap(costs.unhidden, prepare_s + costs.pack_s, transfer_s, costs.train_s)
        case Layout.DATA_PARALLEL:
            half_s = (single_s - costs.train_s) / WORKERS + costs.train_s * costs.half_share
            slower_s = half_s * max(1.0, costs.pace)
            return _overlap(costs.crowding, slower_s, slower_s) + costs.exchange_s / around.accumulation


def predict_all(costs: StageCosts, around: Circumstances) -> list[Prediction]:
    """Every candidate, the simplest first, with what stands against it. Keeping codes is simpler than another device."""
    predictions = []
    for layout in Layout:
        for keeps_codes in (False, True) if around.kept_obstacle is None else (False,):
            candidate = Candidate(layout, keeps_codes)
            batch_s = predict_batch_s(costs, candidate, around)
            obstacle = around.obstacles.get(layout)
            if not keeps_codes:
                obstacle = obstacle or around.online_obstacle
            predictions.append(Prediction(candidate, batch_s * around.accumulation, obstacle))
    return predictions


def _find_codes(candidate: Candidate, around: Circumstances) -> float:
    """The share of clips whose codes are there when they are needed."""
    if not candidate.keeps_codes:
        return 0.0
    # In the first epoch every code has to be made. Workers read what others have put on the disk; of what lies in memory each
    # has its own, and has met every clip only after about as many epochs as there are workers.
    is_apart = candidate.layout is Layout.DATA_PARALLEL and around.policy == "memory"
    return max(0.0, 1 - (WORKERS if is_apart else 1) / max(1, around.epochs))


def _overlap(unhidden: float, *stages_s: float) -> float:
    slowest_s = max(stages_s)
    return slowest_s + unhidden * (sum(stages_s) - slowest_s)
