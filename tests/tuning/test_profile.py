"""What is profiled: the devices of the run it stands for, and batches whose slow part is known."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tensorflow as tf

from myxtts.cli.main import run_command
from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.errors import UserError
from myxtts.monitoring.findings import MachineFacts, Settings
from myxtts.monitoring.profile_facts import StepPart, judge_profile
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.training.mode import ModeChoice, PlannedRun
from myxtts.training.step import MicroStep
from myxtts.tuning import measuring
from myxtts.tuning import profile as profiling
from myxtts.tuning.measuring import find_obstacles
from myxtts.tuning.profile import measure_three_runs, plan_profile
from myxtts.tuning.profiling import (
    FILL_BATCHES,
    FREE_STEPS,
    WINDOWS,
    MeasuredTraining,
    Profiler,
    count_compiled,
    count_launches,
)
from tests.monitoring.profiles import make_run
from tests.training.test_step import make_step, make_tensors, update
from tests.tuning.made_up import MadeUpBatches, MadeUpTraining

NO_CARDS = Machine(CardScan((), (), None), 16000)
FOUR_CARDS = Machine(
    CardScan(tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000) for id in range(4)), (), None),
    16000,
)  # fmt: skip


def plan(training, machine=NO_CARDS):
    return plan_profile(XTTSConfig(training=training), machine, lambda _: None)


def test_a_decoder_is_refused_before_tensorflow_is_loaded(capsys):
    words = ["--rehearsal", "--stage", "decoder", "--init-from", "somewhere"]
    assert run_command("profile", words, "myxtts profile") == 2
    told = capsys.readouterr().err
    assert "Only the training of a codec or a GPT can be measured, but --stage is decoder." in told
    assert "Leave --stage out" in told


def test_auto_is_chosen_as_a_training_would(monkeypatch):
    chosen = plan_devices(PlanRequest(mode="isolated", rehearsal=True), NO_CARDS)
    choice = ModeChoice(Mode.ISOLATED, True, 0.1, "Tested.", ("a", "b"), cache="memory")
    # What a real measurement finds is that of this machine.
    monkeypatch.setattr(profiling, "plan_run", lambda *_, **__: PlannedRun(chosen, choice))
    planned = plan({"mode": "auto", "rehearsal": True})
    assert planned.plan is chosen
    # It was chosen for codes that are kept there.
    assert planned.config.data.cache == "memory"
    both = plan_devices(PlanRequest(rehearsal=True, model_gpu=1, other_gpus=(0,)), NO_CARDS)
    monkeypatch.setattr(profiling, "plan_run", lambda *_, **__: PlannedRun(both, replace(choice, cards=2)))
    planned = plan({"mode": "auto", "rehearsal": True})
    assert planned.plan == replace(both, others=())
    assert "With --model-gpus 1,0, 2 of them share every batch" in planned.notes[0]


def test_of_several_workers_one_is_measured_and_that_is_said():
    planned = plan({"model_gpus": "2,3"}, FOUR_CARDS)
    assert (planned.plan.mode, planned.plan.model.physical_id) == (Mode.SINGLE, 2)
    assert planned.notes == (
        "One device is measured, alone and with whole batches. With --model-gpus 2,3, 2 of them share every batch and exchange "
        "their gradients; neither is in these figures.",
    )
    assert plan({"model_gpus": "2,3", "rehearsal": True}).plan.mode is Mode.SINGLE
    assert plan({}).notes == ()
    # One device is no choice: nothing is measured.
    assert plan({"mode": "auto"}).plan.mode is Mode.SINGLE
    assert "With the cluster, 2 of them share every batch" in plan({"cluster": "local", "trainers": 2}).notes[0]


def make_plan():
    return plan_devices(PlanRequest(mode="single", rehearsal=True), read_machine())


@pytest.mark.parametrize(
    ("slow", "title"),
    [
        (StepPart.LOAD, "DATA LOADING BOTTLENECK"),
        (StepPart.PREPARE, "PREPROCESSING BOTTLENECK"),
        (StepPart.TRANSFER, "GPU TRANSFER BOTTLENECK"),
        (StepPart.TRAIN, None),
    ],
)
def test_the_slow_part_of_a_step_is_named_and_its_parts_make_up_the_step(slow, title):
    parts = (StepPart.LOAD, StepPart.PREPARE, StepPart.TRANSFER, StepPart.TRAIN)
    asked = {part: 0.02 if part is slow else 0.001 for part in parts}
    *seconds, train_s = asked.values()
    training = MadeUpTraining(train=lambda _: time.sleep(train_s))
    profiler = Profiler(MadeUpBatches(seconds), training, steps=8, read_ahead=4, shapes=2)
    measured = measure_three_runs(profiler, make_run("single"), make_plan(), lambda _: None)
    verdict = judge_profile(measured, Settings.of_config(XTTSConfig(), MachineFacts((), 8)))
    assert verdict.is_balanced == (title is None)
    assert [rule.title for rule in verdict.rules[:1]] == ([title] if title else [])
    own = {part: measured.costs[part].own_s for part in parts}
    assert max(own, key=own.get) is slow
    assert own[slow] >= 0.02
    assert sum(cost.step_s for cost in measured.costs.values()) == pytest.approx(measured.step_s)
    # One half as a run is, the other with every step waited for.
    assert (len(measured.free), len(measured.synced)) == (4, 4)
    assert measured.launches == (1000, 200, False)
    assert (measured.cached_mean_s > 0.01) == (slow is StepPart.TRAIN)


def test_what_was_read_ahead_while_the_step_was_traced_does_not_hide_a_slow_disk():
    """Twenty batches come at once, as from a full buffer; then every one has to be waited for."""
    source = MadeUpBatches(read=lambda number: 0.0 if number <= 20 else 0.003)
    profiler = Profiler(source, MadeUpTraining(), steps=10, read_ahead=40)
    profiler.warm_up()
    assert all(batch.spans.read.seconds >= 0.003 for batch in profiler.run_pipeline())


def test_steps_that_trace_are_left_out_with_those_that_follow():
    traced = iter([True] + [False] * 14 + [True] + [False] * 1000)
    profiler = Profiler(MadeUpBatches(), MadeUpTraining(train=lambda _: next(traced)), steps=20)
    times, left_out = profiler.run_synced()
    # Eight to fill the pipeline; after the sixteenth, which traced, it is full again and has to be emptied.
    assert len(times) == 10
    assert left_out == 8 + 4
    profiler = Profiler(MadeUpBatches(), MadeUpTraining(traces=[True]), steps=5)
    for run in (profiler.run_synced, profiler.run_free):
        with pytest.raises(UserError, match="--enable-static-shapes"):
            run()


def test_half_of_the_steps_are_not_waited_for_and_their_time_holds_all_that_was_dispatched():
    """As on a GPU a step is dispatched at once, and takes its time later."""
    traces = [*[False] * (FILL_BATCHES + 3), True, False]
    source, training = MadeUpBatches((0.0, 0.002, 0.0)), MadeUpTraining(step_s=0.01, traces=traces)
    times, step_s, left_out = Profiler(source, training, steps=2 * FREE_STEPS + 8).run_free()
    assert len(times) == FREE_STEPS + 4
    # The window with the step that traced, and the pipeline filled before it and after it.
    assert left_out == 2 * FILL_BATCHES + FREE_STEPS
    assert training.settled == 5
    assert 0.012 <= step_s < 0.1
    assert all(each.wait.seconds >= 0.002 for each in times)


def test_training_alone_is_waited_for_once_for_several_steps():
    # Both shapes are trained on once; then the first of them is traced anew, and timed once more for that.
    training = MadeUpTraining(step_s=0.05, traces=[False, False, True, False])
    profiler = Profiler(MadeUpBatches(), training, steps=1, shapes=2)
    profiler.warm_up()
    settled = training.settled
    profiler.run_cached()
    assert training.settled - settled == 3
    assert all(0.05 <= seconds < 0.2 for seconds in profiler.list_cached(profiler.run_pipeline()))


@pytest.mark.parametrize("uses_xla", [False, True])
def test_the_launches_of_a_step_are_those_of_its_graph_or_of_what_xla_made_of_it(uses_xla):
    step = make_step(uses_xla=uses_xla)
    update(step, make_tensors())
    gradients, of_update, is_compiled = MeasuredTraining.count_launches(SimpleNamespace(step=step))
    assert is_compiled == uses_xla
    variables = len(step.optimizer.variables)
    # Each variable has an Adam of its own, or one that is compiled, beside which the gradients are judged; its gradient is at least one
    # product.
    assert variables <= of_update <= (variables + 1 if uses_xla else 4 * variables + 25)
    assert variables < gradients < (8 if uses_xla else 20) * variables
    # Where batches are added up, most of them are; XLA adds some where it has the gradient.
    first = step.compute(make_tensors(), MicroStep(1, 0, 2))
    step.compute(make_tensors(), MicroStep(1, 1, 2), first)
    added = MeasuredTraining.count_launches(SimpleNamespace(step=step)).gradients - gradients
    assert added >= (1 if uses_xla else variables)


def test_a_launch_is_what_a_gpu_is_asked_for_when_the_graph_is_optimised():
    weight = tf.Variable(tf.ones([3, 3]))

    @tf.function(autograph=False)
    def work(input_BC, flag):
        same_BC = tf.reshape(input_BC, [tf.shape(input_BC)[0], 3])
        unused_BC = tf.exp(same_BC)
        weight.assign_add(tf.ones([3, 3]) * 2)
        del unused_BC
        return tf.cond(flag, lambda: tf.tanh(same_BC @ weight), lambda: same_BC)

    specs = (tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.bool))
    assert count_launches(work.get_concrete_function(*specs)) == {"MatMul": 1, "Tanh": 1, "AssignAddVariableOp": 1}


def test_what_xla_compiles_of_a_function_is_one_launch_whatever_it_holds():
    part = tf.function(
        lambda x: tf.cond(x[0] > 0, lambda: tf.tanh(x) + 1, lambda: tf.exp(x)), jit_compile=True, autograph=False
    )
    whole = tf.function(lambda x: tf.sin(part(part(x))), autograph=False)
    assert count_launches(whole.get_concrete_function(tf.TensorSpec([3]))) == {"XLA": 2, "Sin": 1}


COMPILED = """HloModule a_step

%fused (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  ROOT %twice = f32[2]{0} add(%x, %x)
}

%turn (t: f32[2]) -> f32[2] {
  %t = f32[2]{0} parameter(0)
  ROOT %turned = f32[2]{0} sort(%t), dimensions={0}
}

%is_left (u: f32[2]) -> pred[] {
  %u = f32[2]{0} parameter(0)
  ROOT %left = pred[] reduce(%u), to_apply=%fused
}

%command_buffer (y: f32[2]) -> (f32[2], f32[2]) {
  %y = f32[2]{0} parameter(0)
  %first = f32[2]{0} fusion(%y), kind=kLoop, calls=%fused
  %second = (f32[2]{0}, s8[4]{0}) custom-call(%first, %y), custom_call_target="__cublas$lt$matmul"
  %taken = f32[2]{0} get-tuple-element(%second), index=0
  ROOT %both = (f32[2]{0}, f32[2]{0}) tuple(%first, %taken)
}

ENTRY %step (z: f32[2]) -> (f32[2], f32[2]) {
  %z = f32[2]{0} parameter(0), metadata={op_name="a (name)"}
  %third = f32[2]{0} fusion(%z), kind=kLoop, calls=%fused
  %again = f32[2]{0} while(%third), condition=%is_left, body=%turn, control-predecessors={%third}
  ROOT %rest = (f32[2]{0}, f32[2]{0}) call(%again), to_apply=%command_buffer
}
"""


def test_what_xla_has_compiled_launches_what_its_text_does_not_only_hold():
    assert count_compiled(COMPILED) == {"fusion": 2, "custom-call": 1, "sort": 1, "reduce": 1}


# The measurement behind `--mode auto`.
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


def test_half_of_the_rows_are_timed_beside_all_of_them():
    """A step takes 20 ms and 5 ms for each of its eight rows."""
    rows = []
    training = MadeUpTraining(lambda batch: rows.append(len(batch.tensors["text_BT"])))
    training.settle = lambda: time.sleep(sum(0.02 + 0.005 * each for each in (rows[:], rows.clear())[0]))
    source, take = MadeUpBatches(), MadeUpBatches.take

    def take_with_rows():
        batch = take(source)
        batch.tensors = {"text_BT": tf.zeros([8, 3]), "weights_B": tf.ones([8]), "totals_2": tf.ones([2])}
        return batch

    source.take = take_with_rows
    profiler = Profiler(source, training, steps=1, shapes=2)
    profiler.warm_up()
    profiler.keep_half()
    profiler.run_cached()
    assert profiler.measure_half() == pytest.approx(40 / 60, rel=0.2)
    assert len(profiler.list_cached(profiler.time_best_window(2)[1])) == 2


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
        plan = plan_devices(request, replace(NO_CARDS, host_free_mib=64000))
        setup = SimpleNamespace(config=config, data=data, make_recipe=lambda: recipe)
        found.append(find_obstacles(setup, [plan, put_on_one_device(plan)]))
    named = [set(each) for each in found]
    # With the least memory nothing fits, with the most everything.
    assert (named[0], named[-1]) == ({"isolated", "single"}, set())
    assert all(len(more) >= len(less) for more, less in itertools.pairwise(named))
    assert "\n" not in found[0]["single"]
