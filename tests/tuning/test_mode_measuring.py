"""The measurement behind `--mode auto`: what counts as a window, with batches whose time is known, and what has no room."""

import itertools
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import Mode, PlanRequest, Process, dump_plan, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.errors import MemoryBillError, UserError
from myxtts.pipeline.batch import BatchSpans, Span
from myxtts.training.memory_estimate import RunShape
from myxtts.tuning import mode_measuring
from myxtts.tuning.mode_measuring import FEWEST_BATCHES, READ_AHEAD, estimate_exchange, measure_together
from myxtts.tuning.profiling import FILL_BATCHES, WINDOWS, Profiler

TRAIN_S, READ_S = 0.004, 0.002
DUAL = plan_devices(PlanRequest(mode="dual", rehearsal=True), Machine(CardScan((), (), None), 8000))


class Batches:
    """A source that never ends. From some batch on they are of a rare shape."""

    def __init__(self, rare_from=10**6):
        self.open = self.taken = 0
        self._rare_from = rare_from

    def take(self):
        self.open += 1
        self.taken += 1
        facts = SimpleNamespace(number=self.taken, bucket_number=9 if self.taken >= self._rare_from else self.taken % 2)
        return SimpleNamespace(info=SimpleNamespace(facts=facts, spans=BatchSpans(*[Span(0.0, READ_S)] * 3)))

    def advance(self):
        """Nothing is prepared."""

    def release(self):
        self.open -= 1

    def close(self):
        assert self.open == 0


class Training:
    """Takes a set time when it is waited for, not before, as a GPU does."""

    def __init__(self, traces=()):
        self._traces = itertools.chain(traces, itertools.repeat(False))
        self._owed = self._settled = 0
        self.alone = set()
        self.pauses = {}

    def train(self, batch):
        self.alone.add(batch.info.facts.bucket_number)
        return False

    def dispatch(self, batch):
        self._owed += 1
        return next(self._traces)

    def settle(self):
        self._settled += 1
        time.sleep(self._owed * TRAIN_S + self.pauses.get(self._settled, 0.0))
        self._owed = 0


def time_window(batches, training, source=None):
    return Profiler(source or Batches(), training, steps=1).time_best_window(batches)


def test_a_window_holds_all_that_was_dispatched_in_it_and_the_faster_of_two_counts():
    source, training = Batches(), Training()
    # The second wait of a window is the one that is timed.
    training.pauses[2] = 2.0
    batch_s, times = time_window(6, training, source)
    assert TRAIN_S <= batch_s < 0.3
    assert all(each.spans.read.seconds == pytest.approx(READ_S) for each in times)
    assert [each.bucket for each in times] == [1, 0, 1, 0, 1, 0]
    assert (source.taken, source.open) == (WINDOWS * (FILL_BATCHES + 6), 0)


def test_a_window_in_which_a_step_was_traced_is_done_again():
    source = Batches()
    time_window(3, Training([*[False] * FILL_BATCHES, False, True]), source)
    assert source.taken == (1 + WINDOWS) * (FILL_BATCHES + 3)
    with pytest.raises(UserError, match="--enable-static-shapes, or give --mode"):
        time_window(3, Training([True] * 1000))


@pytest.mark.parametrize(
    ("shapes", "accumulation", "batches"), [(1, 1, 8), (6, 1, 12), (40, 1, 32), (1, 3, 9), (6, 8, 16), (1, 84, 8)]
)
def test_a_window_has_some_batches_of_every_shape_and_whole_updates(shapes, accumulation, batches):
    assert mode_measuring.count_measured_batches(shapes, accumulation) == batches


class Recipe(NamedTuple):
    """What batches are made of, as far as this counts."""

    plan: object
    preparation: object = None


@pytest.fixture
def measured(monkeypatch):
    """Measures costs with batches and steps that do nothing; returns them, the training and the modes of the sources."""

    def measure(source, **given):
        modes, training = [], Training()
        stubs = {
            "replace": lambda recipe, plan: Recipe(plan),
            "SyncedTraining": lambda _: training,
            "time_ring": lambda *_: (0.0, 0.0),
            "measure_batch_bytes": lambda *_: 1,
            "_measure_codes": lambda *_: 0.0,
            "measure_pair": lambda *_: {"pace": 3.0},
            "get_device_context": lambda _: tf.device("/CPU:0"),
        }
        for name, stub in stubs.items():
            monkeypatch.setattr(mode_measuring, name, stub)
        sampler = SimpleNamespace(plan=SimpleNamespace(buckets=(0, 9)))
        data = SimpleNamespace(sampler=sampler)
        setup = SimpleNamespace(
            config=XTTSConfig(),
            data=data,
            plan=DUAL,
            make_recipe=lambda: Recipe(DUAL),
            open_batches=lambda recipe: modes.append(recipe.plan.mode) or source,
        )
        return mode_measuring.measure_costs(setup, **given), training, modes

    return measure


def test_a_shape_that_comes_first_in_a_window_is_trained_alone_too(measured):
    # Behind warming up and the pipeline alone.
    costs, training, modes = measured(Batches(rare_from=3 * 2 + READ_AHEAD + FILL_BATCHES + FEWEST_BATCHES + 3))
    assert costs.train_s > 0
    assert training.alone == {0, 1, 9}
    assert modes == [Mode.DUAL, Mode.SINGLE]


def test_one_device_without_room_for_everything_is_not_tried(measured):
    costs, _, modes = measured(Batches(), may_share=True, fits_one=False)
    assert modes == [Mode.DUAL, Mode.DUAL]
    assert costs.single_s == pytest.approx(costs.prepare_s + costs.train_s)
    assert (costs.prepare_s, costs.pace) == (pytest.approx(2 * READ_S), 3.0)


def test_everything_is_put_on_the_device_that_trains():
    single = put_on_one_device(DUAL)
    assert single.mode is Mode.SINGLE
    assert single.data.device == single.model.device == DUAL.model.device != DUAL.data.device
    assert single.data.process is Process.TRAINER


@dataclass
class Rows:
    """A batch of so many rows."""

    tensors: dict


@pytest.mark.parametrize(
    ("rows", "fixed_rows", "share"),
    [(4, 0, 1 / 2), (3, 0, 2 / 3), (4, 4, 3 / 4), (1, 0, 1.0)],
    ids=["even", "odd", "half of it is no matter of rows", "one clip"],
)
def test_half_the_clips_take_what_they_take(monkeypatch, rows, fixed_rows, share):
    source, seconds = Batches(), [0.0]
    batch = Rows({"weights_B": tf.ones([rows]), "totals_2": tf.ones([2])})
    monkeypatch.setattr(source, "take", lambda: Batches.take(source) and batch)
    monkeypatch.setattr(mode_measuring.time, "perf_counter", lambda: seconds[0])

    def train(batch):
        assert batch.tensors["totals_2"].shape == (2,)
        seconds[0] += fixed_rows + int(batch.tensors["weights_B"].shape[0])
        return True

    assert mode_measuring.measure_half_share(source, SimpleNamespace(train=train)) == pytest.approx(share)
    assert (source.taken, source.open) == (1, 0)


@pytest.mark.parametrize(
    ("first_s", "second_s", "both_s", "pace", "crowding"),
    [(1, 2, 2, 2, 0), (1, 1, 2, 1, 1), (1, 1, 1.5, 1, 0.5), (1, 1, 3, 1, 1), (1, 1, 0.9, 1, 0)],
)
def test_two_devices_are_tried_alone_and_together(monkeypatch, first_s, second_s, both_s, pace, crowding):
    times = {("a",): first_s, ("b",): second_s, ("a", "b"): both_s}
    monkeypatch.setattr(mode_measuring, "_time_products", lambda devices: times[tuple(devices)])
    assert measure_together("a", "b") == pytest.approx((pace, crowding))


def test_products_and_copies_are_really_done():
    pace, crowding = measure_together("/CPU:0", "/CPU:0")
    assert 0.01 < pace < 100
    assert 0 <= crowding <= 1
    assert estimate_exchange(DUAL, 600_000_000) == pytest.approx(2.0)
    roles = {name: replace(getattr(DUAL, name), device="/CPU:0") for name in ("data", "model")}
    here = replace(DUAL, rehearsal=False, **roles)
    assert 0 < estimate_exchange(here, 1000) < estimate_exchange(here, 100_000_000)


WHOLE, HALF = (5, 4), (3, 2)
MODEL, DATA = DUAL.model.device, DUAL.data.device


@pytest.fixture
def bill(monkeypatch):
    """Bills what is asked for: refused devices have no room for a training, of half the rows or of all. Returns what was billed."""
    billed = []

    def make(*refused):
        def check(config, plan, shape):
            what = (str(plan.mode), plan.model.device, tuple(bucket.rows for bucket in shape.buckets))
            billed.append(what)
            if what in refused:
                raise MemoryBillError(f"{plan.mode} on {plan.model.device} needs 30 GB.\nTry --batch-size 4.")

        monkeypatch.setattr(mode_measuring, "check_run", check)
        shape = RunShape("gpt", (Bucket(5, 22050, 10), Bucket(4, 44100, 20)), None)
        monkeypatch.setattr(mode_measuring, "describe_shape", lambda _: shape)
        return billed

    return make


def test_every_mode_is_billed_and_each_of_two_trainers_with_half_of_every_batch(bill):
    billed, setup = bill(("single", MODEL, WHOLE), ("single", DATA, HALF)), SimpleNamespace(plan=DUAL, config=None)
    assert mode_measuring.find_obstacles(setup, [DUAL]) == {
        "single": f"single on {MODEL} needs 30 GB",
        "data-parallel": f"single on {DATA} needs 30 GB",
    }
    assert billed == [
        ("dual", MODEL, WHOLE),
        *[("single", MODEL, rows) for rows in (WHOLE, HALF)],
        ("single", DATA, HALF),
    ]


def test_where_nothing_fits_the_batch_that_would_is_named_and_nothing_is_measured(monkeypatch, bill):
    bill(("dual", MODEL, WHOLE), ("single", MODEL, WHOLE), ("single", MODEL, HALF))
    monkeypatch.setattr(mode_measuring, "apply_devices", lambda *_: None)
    monkeypatch.setattr(mode_measuring, "set_up_profile", lambda *_: SimpleNamespace(plan=DUAL, config=None))
    monkeypatch.setattr(mode_measuring, "measure_costs", lambda *_, **__: pytest.fail("it has no room"))
    with pytest.raises(MemoryBillError, match="--batch-size 4"):
        mode_measuring.make_measurer(XTTSConfig().given_values(), "unused")([dump_plan(DUAL)])
