"""The measurement behind `--mode auto`: what counts as a window, with batches whose time is known, and what has no room."""

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import UserError
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.tuning import mode_measuring
from myxtts.tuning.mode_measuring import estimate_exchange, find_obstacles, measure_half_share, measure_together
from myxtts.tuning.profiling import FILL_BATCHES, WINDOWS, Profiler
from tests.tuning.made_up import MadeUpBatches, MadeUpTraining

TRAIN_S, READ_S = 0.004, 0.002
DUAL = plan_devices(PlanRequest(mode="dual", rehearsal=True), Machine(CardScan((), (), None), 8000))


def test_a_window_holds_all_that_was_dispatched_in_it_and_the_faster_of_two_counts():
    # The second wait of a window is the one that is timed.
    source, training = MadeUpBatches((READ_S, 0.0, 0.0)), MadeUpTraining(step_s=TRAIN_S, pauses={2: 2.0})
    batch_s, times = Profiler(source, training, steps=1).time_best_window(6)
    assert TRAIN_S + READ_S <= batch_s < 0.3
    assert all(each.spans.read.seconds >= READ_S for each in times)
    assert [each.bucket for each in times] == [1, 0, 1, 0, 1, 0]
    assert (source.taken, source.open) == (WINDOWS * (FILL_BATCHES + 6), 0)


def test_a_window_in_which_a_step_was_traced_is_done_again():
    source = MadeUpBatches()
    traces = [*[False] * FILL_BATCHES, False, True, False]
    Profiler(source, MadeUpTraining(traces=traces), steps=1).time_best_window(3)
    assert source.taken == (1 + WINDOWS) * (FILL_BATCHES + 3)
    with pytest.raises(UserError, match="--enable-static-shapes, or give --mode"):
        Profiler(source, MadeUpTraining(traces=[True]), steps=1).time_best_window(3)


def test_a_shape_that_comes_first_in_a_window_can_be_trained_alone_after_it():
    profiler = Profiler(MadeUpBatches(rare_from=20), MadeUpTraining(), steps=1, shapes=3)
    profiler.warm_up()
    _, times = profiler.time_best_window(20)
    profiler.run_cached()
    assert {each.bucket for each in times} >= {9}
    assert len(profiler.list_cached(times)) == 20


@pytest.mark.parametrize(
    ("shapes", "accumulation", "batches"), [(1, 1, 8), (6, 1, 12), (40, 1, 32), (1, 3, 9), (6, 8, 16), (1, 84, 8)]
)
def test_a_window_has_some_batches_of_every_shape_and_whole_updates(shapes, accumulation, batches):
    assert mode_measuring.count_measured_batches(shapes, accumulation) == batches


@dataclass
class Rows:
    """A batch of so many rows, where it can be split."""

    tensors: dict


@pytest.mark.parametrize(
    ("rows", "fixed_rows", "share"),
    [(4, 0, 1 / 2), (3, 0, 2 / 3), (4, 4, 3 / 4), (1, 0, 1.0)],
    ids=["even", "odd", "half of it is no matter of rows", "one clip"],
)
def test_half_the_clips_take_what_they_take(monkeypatch, rows, fixed_rows, share):
    seconds = [0.0]
    batch = Rows({"weights_B": tf.ones([rows]), "totals_2": tf.ones([2])})
    source = SimpleNamespace(take=lambda: batch, advance=lambda: None, release=lambda: None)
    monkeypatch.setattr(mode_measuring.time, "perf_counter", lambda: seconds[0])

    def train(batch):
        assert batch.tensors["totals_2"].shape == (2,)
        seconds[0] += fixed_rows + int(batch.tensors["weights_B"].shape[0])

    assert measure_half_share(source, MadeUpTraining(train=train)) == pytest.approx(share)


def test_products_and_copies_are_really_done():
    pace, crowding = measure_together("/CPU:0", "/CPU:0")
    assert 0.01 < pace < 100
    assert 0 <= crowding <= 1
    assert estimate_exchange(DUAL, 600_000_000) == pytest.approx(2.0)
    roles = {name: replace(getattr(DUAL, name), device="/CPU:0") for name in ("data", "model")}
    here = replace(DUAL, rehearsal=False, **roles)
    assert 0 < estimate_exchange(here, 1000) < estimate_exchange(here, 100_000_000)


def test_every_mode_is_billed_and_each_of_two_trainers_with_half_of_every_batch():
    config = XTTSConfig(model={"size": "tiny"})
    recipe = SimpleNamespace(preparation=choose_preparation(config, Target.GPT, [1.0] * 80))
    batches = SimpleNamespace(buckets=(Bucket(64, 10 * 22050, 200), Bucket(48, 12 * 22050, 200)))
    data = SimpleNamespace(sampler=SimpleNamespace(plan=batches))
    found = []
    for limit_mib in range(256, 32 * 1024, 256):
        request = PlanRequest(mode="isolated", rehearsal=True, data_limit_mib=20000, model_limit_mib=limit_mib)
        plan = plan_devices(request, Machine(CardScan((), (), None), 64000))
        setup = SimpleNamespace(plan=plan, config=config, data=data, make_recipe=lambda: recipe)
        found.append(find_obstacles(setup, [plan]))
    named = [set(each) for each in found]
    # With the least memory nothing fits, with the most everything; in between two that share a batch are the last to have none.
    assert named[0] == {"isolated", "single", "data-parallel"}
    assert named[-1] == set()
    assert {"isolated", "single"} in named
    assert all(len(more) >= len(less) for more, less in itertools.pairwise(named))
    assert "\n" not in found[0]["single"]
