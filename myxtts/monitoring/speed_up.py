"""How much two devices can gain over one, and how much they gained."""

from __future__ import annotations

from dataclasses import dataclass

from myxtts.monitoring.flow import Flow
from myxtts.monitoring.time_ledger import Cause, Spent, measure_training


@dataclass(frozen=True)
class SpeedUp:
    """Preparing and training side by side, against one after the other."""

    prepare_s: float
    """Per batch, as is `train_s`."""
    train_s: float
    reached: float
    """Time of both in series over the time a batch really took."""

    @property
    def bound(self) -> float:
        """1 + min/max: no way of overlapping the two gains more."""
        return 1 + min(self.prepare_s, self.train_s) / max(self.prepare_s, self.train_s)


def measure_speed_up(flow: Flow | None, spent: Spent, batches: int) -> SpeedUp | None:
    """Bound and what was reached over some batches; None while preparing or training has not been measured.

    Batches that something was traced for do not count, since their time is not that of steps.
    The first of the stages, reading included, is what runs on the data device; copying counts to neither.
    """
    train_s = spent.get(Cause.STEP, 0.0)
    prepared = [stage for stage in flow.stages if stage.name != "transfer" and stage.items] if flow is not None else []
    prepare_s = sum(stage.busy_s / stage.items for stage in prepared)
    if not batches or prepare_s <= 0 or train_s <= 0:
        return None
    per_batch_s = measure_training(spent) / batches
    return SpeedUp(prepare_s, train_s / batches, (prepare_s + train_s / batches) / per_batch_s)
