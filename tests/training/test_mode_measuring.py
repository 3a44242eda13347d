"""The measurement behind `--mode auto`: what counts as a window, with batches whose time is known."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import Mode, PlanRequest, Process, plan_devices
from myxtts.pipeline.paced_task import hold
from myxtts.training.mode_measuring import (
    count_measured_batches,
    put_on_one_device,
    time_best_window,
    time_window,
)
from myxtts.training.profile_run import FILL_BATCHES, ProfileError

TRAIN_S, READ_S = 0.004, 0.002


class Batches:
    """A source that never ends."""

    def __init__(self) -> None:
        self.open = 0
        self.taken = 0

    def take(self) -> Any:
        self.open += 1
        self.taken += 1
        spans = SimpleNamespace(read=SimpleNamespace(seconds=READ_S))
        return SimpleNamespace(facts=SimpleNamespace(bucket_number=self.taken % 2), spans=spans)

    def advance(self) -> None:
        """Nothing is prepared."""

    def release(self) -> None:
        self.open -= 1


class Training:
    """Takes a set time when it is waited for, not before, as a GPU does."""

    def __init__(self, traces: Iterator[bool]):
        self._traces = traces
        self._owed = 0

    def dispatch(self, batch: Any) -> bool:
        self._owed += 1
        return next(self._traces)

    def settle(self) -> None:
        hold(self._owed * TRAIN_S)
        self._owed = 0


def never_trace() -> Iterator[bool]:
    while True:
        yield False


def test_a_window_holds_all_that_was_dispatched_in_it() -> None:
    source = Batches()
    window = time_window(source, Training(never_trace()), 6)  # type: ignore[arg-type]
    assert window.batch_s >= TRAIN_S
    assert window.read_s == pytest.approx(READ_S)
    assert window.buckets == (1, 0, 1, 0, 1, 0)
    assert (source.taken, source.open) == (FILL_BATCHES + 6, 0)


def test_a_window_in_which_a_step_was_traced_is_done_again() -> None:
    source = Batches()
    traces = iter([*[False] * FILL_BATCHES, False, True, False, *[False] * 100])
    time_window(source, Training(traces), 3)  # type: ignore[arg-type]
    assert source.taken == 2 * (FILL_BATCHES + 3)


def test_a_step_that_is_always_traced_cannot_be_timed() -> None:
    with pytest.raises(ProfileError, match="--enable-static-shapes, or give --mode"):
        time_window(Batches(), Training(iter([True] * 1000)), 3)  # type: ignore[arg-type]


def test_the_faster_of_two_windows_counts() -> None:
    class Hiccup(Training):
        settled = 0

        def settle(self) -> None:
            super().settle()
            self.settled += 1
            # The second of a window's two: the one that is timed.
            if self.settled == 2:
                hold(2.0)

    window = time_best_window(Batches(), Hiccup(never_trace()), 4)  # type: ignore[arg-type]
    assert window.batch_s < 0.5


@pytest.mark.parametrize(
    ("shapes", "accumulation", "batches"), [(1, 1, 8), (6, 1, 12), (40, 1, 32), (1, 3, 9), (6, 8, 16), (1, 84, 8)]
)
def test_a_window_has_some_batches_of_every_shape_and_whole_updates(
    shapes: int, accumulation: int, batches: int
) -> None:
    assert count_measured_batches(shapes, accumulation) == batches


def test_everything_is_put_on_the_device_that_trains() -> None:
    plan = plan_devices(PlanRequest(mode="dual", rehearsal=True), Machine(CardScan((), (), None), 8000))
    single = put_on_one_device(plan)
    assert single.mode is Mode.SINGLE
    assert single.data.device == single.model.device == plan.model.device != plan.data.device
    assert single.data.process is Process.TRAINER
