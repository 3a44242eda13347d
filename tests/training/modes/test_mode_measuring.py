"""The measurement behind `--mode auto`: what counts as a window, with batches whose time is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from myxtts.data.buckets import Bucket
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, Process, Role, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.monitoring.errors import MemoryBillError
from myxtts.training.memory_estimate import RunShape
from myxtts.training.modes import measuring as mode_measuring
from myxtts.training.modes import parallel_measuring
from myxtts.training.modes.measuring import (
    FEWEST_BATCHES,
    READ_AHEAD,
    count_measured_batches,
    find_memory_obstacles,
    find_workers_obstacle,
    refuse_without_room,
    time_best_window,
    time_window,
)
from myxtts.training.modes.parallel_measuring import estimate_exchange, measure_half_share, measure_together
from myxtts.training.profiling.run import FILL_BATCHES, ProfileError

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
        time.sleep(self._owed * TRAIN_S)
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


class RareShape(Batches):
    """Batches of which some later one is the first of its shape."""

    def __init__(self, rare_from: int) -> None:
        super().__init__()
        self._rare_from = rare_from

    def take(self) -> Any:
        self.open += 1
        self.taken += 1
        span = SimpleNamespace(seconds=READ_S)
        facts = SimpleNamespace(number=self.taken, bucket_number=9 if self.taken >= self._rare_from else 0)
        return SimpleNamespace(facts=facts, spans=SimpleNamespace(read=span, prepare=span, transfer=span))

    def close(self) -> None:
        assert self.open == 0


class Steps:
    """Trains at once, and remembers on what."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.alone: list[int] = []

    def train(self, batch: Any) -> bool:
        self.alone.append(batch.facts.bucket_number)
        return False

    def dispatch(self, batch: Any) -> bool:
        return False

    def settle(self) -> None:
        """Nothing is owed."""


class Request(NamedTuple):
    """What a source is opened with, as far as this counts."""

    plan: DevicePlan


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures costs with batches and steps that do nothing; returns them, the steps and the modes of the sources."""

    def measure(source: Any, measure_pair: Any = None, **given: Any) -> Any:
        modes: list[Mode] = []
        steps = Steps()

        def open_source(request: Request) -> Any:
            modes.append(request.plan.mode)
            return source

        monkeypatch.setattr(mode_measuring, "open_source", open_source)
        monkeypatch.setattr(mode_measuring, "replace", lambda request, plan: Request(plan))
        monkeypatch.setattr(mode_measuring, "put_on_one_device", lambda plan: SimpleNamespace(mode=Mode.SINGLE))
        monkeypatch.setattr(mode_measuring, "SyncedTraining", lambda *_, **__: steps)
        monkeypatch.setattr(mode_measuring, "time_ring", lambda *_: (0.0, 0.0))
        monkeypatch.setattr(mode_measuring, "_count_batch_bytes", lambda _: 1)
        monkeypatch.setattr(mode_measuring, "_measure_codes", lambda _: 0.0)
        plan = SimpleNamespace(mode=Mode.DUAL, model=SimpleNamespace(device="/CPU:0"))
        training = SimpleNamespace(gradient_accumulation_steps=1, on_oom="retry")
        setup: Any = SimpleNamespace(
            config=SimpleNamespace(training=training),
            data=SimpleNamespace(sampler=SimpleNamespace(plan=SimpleNamespace(buckets=(0, 9)))),
            plan=plan,
            build_model=lambda: SimpleNamespace(step=None),
            request_source=lambda: Request(plan),  # type: ignore[arg-type]
        )
        return mode_measuring.measure_costs(setup, measure_pair, **given), steps, modes

    return measure


def test_a_shape_that_comes_first_in_a_window_is_trained_alone_too(measured: Any) -> None:
    # Behind warming up and the pipeline alone.
    source = RareShape(3 * 2 + READ_AHEAD + FILL_BATCHES + FEWEST_BATCHES + 3)
    costs, steps, modes = measured(source)
    assert costs.train_s > 0
    assert set(steps.alone) == {0, 9}
    assert modes == [Mode.DUAL, Mode.SINGLE]


def test_one_device_without_room_for_everything_is_not_tried(measured: Any) -> None:
    costs, _, modes = measured(RareShape(10**6), lambda *_: {"pace": 3.0}, fits_one=False)
    assert modes == [Mode.DUAL, Mode.DUAL]
    assert costs.single_s == pytest.approx(costs.prepare_s + costs.train_s)
    assert costs.prepare_s == pytest.approx(2 * READ_S)
    assert costs.pace == 3.0


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
                time.sleep(2.0)

    window = time_best_window(Batches(), Hiccup(never_trace()), 4)  # type: ignore[arg-type]
    assert window.batch_s < 0.5


@pytest.mark.parametrize(
    ("shapes", "accumulation", "batches"), [(1, 1, 8), (6, 1, 12), (40, 1, 32), (1, 3, 9), (6, 8, 16), (1, 84, 8)]
)
def test_a_window_has_some_batches_of_every_shape_and_whole_updates(
    shapes: int, accumulation: int, batches: int
) -> None:
    assert count_measured_batches(shapes, accumulation) == batches


def make_dual_plan() -> DevicePlan:
    return plan_devices(PlanRequest(mode="dual", rehearsal=True), Machine(CardScan((), (), None), 8000))


def test_everything_is_put_on_the_device_that_trains() -> None:
    plan = make_dual_plan()
    single = put_on_one_device(plan)
    assert single.mode is Mode.SINGLE
    assert single.data.device == single.model.device == plan.model.device != plan.data.device
    assert single.data.process is Process.TRAINER


class Rows(NamedTuple):
    """A batch of so many rows."""

    tensors: dict[str, tf.Tensor]


@pytest.mark.parametrize(
    ("rows", "fixed_rows", "share"),
    [(4, 0, 1 / 2), (3, 0, 2 / 3), (4, 4, 3 / 4), (1, 0, 1.0)],
    ids=["even", "odd", "half of it is no matter of rows", "one clip"],
)
def test_half_the_clips_take_what_they_take(
    monkeypatch: pytest.MonkeyPatch, rows: int, fixed_rows: int, share: float
) -> None:
    class Source(Batches):
        def take(self) -> Any:
            super().take()
            return Rows({"weights_B": tf.ones([rows]), "totals_2": tf.ones([2])})

    seconds = [0.0]
    monkeypatch.setattr(parallel_measuring.time, "perf_counter", lambda: seconds[0])

    def train(batch: Rows) -> None:
        assert batch.tensors["totals_2"].shape == (2,)
        seconds[0] += fixed_rows + int(batch.tensors["weights_B"].shape[0])

    source = Source()
    training: Any = SimpleNamespace(train=train)
    assert measure_half_share(source, training) == pytest.approx(share)  # type: ignore[arg-type]
    assert (source.taken, source.open) == (1, 0)


@pytest.mark.parametrize(
    ("first_s", "second_s", "both_s", "pace", "crowding"),
    [(1, 1, 1, 1, 0), (1, 2, 2, 2, 0), (1, 1, 2, 1, 1), (1, 1, 1.5, 1, 0.5), (1, 1, 3, 1, 1), (1, 1, 0.9, 1, 0)],
)
def test_two_devices_are_tried_alone_and_together(
    monkeypatch: pytest.MonkeyPatch, first_s: float, second_s: float, both_s: float, pace: float, crowding: float
) -> None:
    times = {("a",): first_s, ("b",): second_s, ("a", "b"): both_s}
    monkeypatch.setattr(parallel_measuring, "_time_products", lambda devices: times[tuple(devices)])
    assert measure_together("a", "b") == pytest.approx((pace, crowding))


def test_products_are_really_computed() -> None:
    pace, crowding = measure_together("/CPU:0", "/CPU:0")
    assert 0.01 < pace < 100
    assert 0 <= crowding <= 1


def test_an_exchange_grows_with_the_gradients() -> None:
    rehearsal = make_dual_plan()
    assert estimate_exchange(rehearsal, 600_000_000) == pytest.approx(2.0)
    here = replace(
        rehearsal,
        rehearsal=False,
        data=replace(rehearsal.data, device="/CPU:0"),
        model=replace(rehearsal.model, device="/CPU:0"),
    )
    assert 0 < estimate_exchange(here, 1000) < estimate_exchange(here, 100_000_000)


@pytest.mark.parametrize("refused", [{Mode.SINGLE}, {Mode.DUAL, Mode.SINGLE}, set()])
def test_every_mode_is_billed_and_where_none_fits_the_batch_that_would_is_named(
    monkeypatch: pytest.MonkeyPatch, refused: set[Mode]
) -> None:
    plans = [make_dual_plan(), put_on_one_device(make_dual_plan())]
    setup: Any = SimpleNamespace(config=None)
    monkeypatch.setattr(mode_measuring, "describe_shape", lambda _: None)

    def bill(config: Any, plan: DevicePlan, shape: Any) -> None:
        if plan.mode in refused:
            raise MemoryBillError(f"{plan.mode} needs 30 GB.\nTry --batch-size 4.")

    monkeypatch.setattr(mode_measuring, "check_run", bill)
    obstacles = find_memory_obstacles(setup, plans)
    assert obstacles == {str(mode): f"{mode} needs 30 GB" for mode in refused}
    if len(refused) < 2:
        refuse_without_room(setup, plans, obstacles)
    else:
        with pytest.raises(MemoryBillError, match="--batch-size 4"):
            refuse_without_room(setup, plans, obstacles)


@pytest.mark.parametrize("too_small", [None, Role.DATA, Role.MODEL])
def test_each_of_two_trainers_must_hold_half_of_every_batch(
    monkeypatch: pytest.MonkeyPatch, too_small: Role | None
) -> None:
    plan = make_dual_plan()
    setup: Any = SimpleNamespace(plan=plan, config=None)
    shape = RunShape("gpt", (Bucket(5, 22050, 10), Bucket(4, 44100, 20)), None)  # type: ignore[arg-type]
    monkeypatch.setattr(mode_measuring, "describe_shape", lambda _: shape)
    billed = []

    def bill(config: Any, one: DevicePlan, half: RunShape) -> None:
        billed.append((one.data.device, one.model.device, [bucket.rows for bucket in half.buckets]))
        if too_small and one.model.device == (plan.data if too_small is Role.DATA else plan.model).device:
            raise MemoryBillError("It needs 30 GB.\nTry less.")

    monkeypatch.setattr(mode_measuring, "check_run", bill)
    assert find_workers_obstacle(setup) == (None if too_small is None else "It needs 30 GB")
    if too_small is None:
        assert billed == [(role.device, role.device, [3, 2]) for role in (plan.model, plan.data)]
