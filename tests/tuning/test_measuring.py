"""The measurement behind `--mode auto`: what counts as a window, with batches whose time is known, and what has no room."""

import itertools
from types import SimpleNamespace

import pytest

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import PlanRequest, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.errors import UserError
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.tuning import measuring
from myxtts.tuning.measuring import find_obstacles
from myxtts.tuning.profiling import FILL_BATCHES, WINDOWS, Profiler
from tests.tuning.made_up import MadeUpBatches, MadeUpTraining

TRAIN_S, READ_S = 0.004, 0.002


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
    assert measuring.count_measured_batches(shapes, accumulation) == batches


def test_every_mode_is_billed():
    config = XTTSConfig(model={"size": "tiny"})
    recipe = SimpleNamespace(preparation=choose_preparation(config, Target.GPT, [1.0] * 80))
    batches = SimpleNamespace(buckets=(Bucket(64, 10 * 22050, 200), Bucket(48, 12 * 22050, 200)))
    data = SimpleNamespace(sampler=SimpleNamespace(plan=batches))
    found = []
    for limit_mib in range(256, 32 * 1024, 256):
        request = PlanRequest(mode="isolated", rehearsal=True, data_limit_mib=20000, model_limit_mib=limit_mib)
        plan = plan_devices(request, Machine(CardScan((), (), None), 64000))
        setup = SimpleNamespace(config=config, data=data, make_recipe=lambda: recipe)
        found.append(find_obstacles(setup, [plan, put_on_one_device(plan)]))
    named = [set(each) for each in found]
    # With the least memory nothing fits, with the most everything.
    assert (named[0], named[-1]) == ({"isolated", "single"}, set())
    assert all(len(more) >= len(less) for more, less in itertools.pairwise(named))
    assert "\n" not in found[0]["single"]
