"""One row of every stretch of steps: what the loop counted, put together when it is logged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.monitoring.flow import Flow, subtract_flow
from myxtts.monitoring.metrics_rows import MemoryUse, TrainRow
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import TimeLedger, measure_training


class IntervalMeter:
    """Counts batches between two log lines. Per batch it adds some numbers; all else happens in `close`."""

    def __init__(self, clock: StepClock, ledger: TimeLedger):
        self._clock, self._ledger = clock, ledger
        self._flow: Flow | None = None
        self._counts: Counter[str] = Counter()

    def count_batch(
        self, clips: int, samples: int, padded_samples: int, *, has_traced: bool = False, is_retrace: bool = False
    ) -> None:
        """A batch was trained on.

        Args:
            padded_samples: all samples of its shape, the padding included.
            has_traced: whether something was traced for it. Its time is then no time of training, so rates leave it out.
            is_retrace: whether that should not have been.
        """
        counts = self._counts
        counts["batches"] += 1
        counts["clips"] += clips
        counts["samples"] += samples
        counts["padded_samples"] += padded_samples
        counts["retraces"] += is_retrace
        counts["traced_batches"] += has_traced
        if not has_traced:
            counts["timed_clips"] += clips
            counts["timed_samples"] += samples

    def close(
        self,
        *,
        step: int,
        epoch: int,
        losses: Sequence[float],
        learning_rate: float | None,
        scalars: Mapping[str, float],
        flow: Flow,
        memory: Sequence[MemoryUse],
    ) -> TrainRow:
        """The row of everything since the last one.

        Args:
            step: updates done.
            losses: of every step since the last row.
            flow: facts counted from the start of the pipeline; the row gets what is new in them.
        """
        durations_s, left_out = self._clock.take_window()
        spent = self._ledger.take_window()
        training_s = measure_training(spent)
        counts, self._counts = self._counts, Counter()
        last_flow, self._flow = self._flow, flow
        is_timed = counts["timed_clips"] > 0 and training_s > 0
        return TrainRow(
            time_s=time.time(),
            step=step,
            epoch=epoch,
            losses=tuple(losses),
            learning_rate=learning_rate,
            scalars=dict(scalars),
            step_times_s=tuple(durations_s),
            left_out=left_out,
            spent=spent,
            **{
                name: counts[name]
                for name in ("batches", "clips", "samples", "padded_samples", "retraces", "traced_batches")
            },
            clips_per_s=counts["timed_clips"] / training_s if is_timed else None,
            audio_seconds_per_s=counts["timed_samples"] / SAMPLE_RATE_HZ / training_s if is_timed else None,
            flow=subtract_flow(flow, last_flow),
            memory=tuple(memory),
        )
