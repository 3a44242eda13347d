"""One row of every stretch of steps: what the loop counted, put together when it is logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.monitoring.flow import Flow, subtract_flow
from myxtts.monitoring.metrics_rows import MemoryUse, TrainRow
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import TimeLedger, measure_training


class IntervalMeter:
    """Counts batches between two log lines. Per batch it adds some numbers; all else happens in `close`."""

    def __init__(self, clock: StepClock, ledger: TimeLedger, wall_clock: Callable[[], float] = time.time):
        self._clock = clock
        self._ledger = ledger
        self._wall_clock = wall_clock
        self._flow: Flow | None = None
        self._clear()

    def count_batch(
        self, clips: int, samples: int, padded_samples: int, *, has_traced: bool = False, is_retrace: bool = False
    ) -> None:
        """A batch was trained on.

        Args:
            padded_samples: all samples of its shape, the padding included.
            has_traced: whether something was traced for it. Its time is then no time of training, so rates leave it out.
            is_retrace: whether that should not have been.
        """
        self._batches += 1
        self._clips += clips
        self._samples += samples
        self._padded_samples += padded_samples
        self._retraces += is_retrace
        self._traced_batches += has_traced
        if not has_traced:
            self._timed_clips += clips
            self._timed_samples += samples

    def close(
        self,
        *,
        step: int,
        epoch: int,
        losses: Sequence[float],
        learning_rate: float | None,
        scalars: Mapping[str, float] | None = None,
        flow: Flow | None = None,
        memory: Sequence[MemoryUse] = (),
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
        is_timed = self._timed_clips > 0 and training_s > 0
        row = TrainRow(
            time_s=self._wall_clock(),
            step=step,
            epoch=epoch,
            losses=tuple(losses),
            learning_rate=learning_rate,
            scalars=dict(scalars or {}),
            step_times_s=tuple(durations_s),
            left_out=left_out,
            spent=spent,
            batches=self._batches,
            traced_batches=self._traced_batches,
            clips=self._clips,
            samples=self._samples,
            padded_samples=self._padded_samples,
            clips_per_s=self._timed_clips / training_s if is_timed else None,
            audio_seconds_per_s=self._timed_samples / SAMPLE_RATE_HZ / training_s if is_timed else None,
            retraces=self._retraces,
            flow=None if flow is None else subtract_flow(flow, self._flow),
            memory=tuple(memory),
        )
        self._flow = flow
        self._clear()
        return row

    def _clear(self) -> None:
        self._batches = self._clips = self._samples = self._padded_samples = self._retraces = 0
        self._timed_clips = self._timed_samples = self._traced_batches = 0
