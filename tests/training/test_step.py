"""The compiled step: gradients that add up, updates that skip what is not finite, and no side effects before them."""

import re
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.gpt import GPT
from myxtts.models.xtts import initialise_weights
from myxtts.monitoring.clock import Cause, StepClock, TimeLedger
from myxtts.training.loop import ValidationRound
from myxtts.training.objectives import GPTObjective
from myxtts.training.optimizer import BETAS, CALM_UPDATES, AdamW, Pack, WeightAverage, measure_half_square
from myxtts.training.step import PARTS_OF_REPLICA, MicroStep, StepSettings, TrainStep, UpdateMaker, split_rows
from myxtts.tuning.profiling import count_launches
from tests.models.small import SIZE
from tests.support.processes import run_code

ROWS, FRAMES, TEXT, CODES = 6, 24, 9, 12


def build_least_gpt(**options):
    """One layer: tracing is what these tests spend their time on."""
    gpt = GPT(replace(SIZE, layers=1, encoder_blocks=1), **options)
    initialise_weights(gpt, 3)
    return gpt


def make_tensors(rows=ROWS, seed=0, **changed):
    draw = np.random.default_rng(seed)
    text_lengths = draw.integers(3, TEXT + 1, rows).astype(np.int32)
    code_lengths = draw.integers(4, CODES + 1, rows).astype(np.int32)
    arrays = {
        "mel_BFM": draw.normal(size=(rows, FRAMES, 80)).astype(np.float32),
        "text_BT": draw.integers(0, 20, (rows, TEXT)).astype(np.int32),
        "text_lengths_B": text_lengths,
        "codes_BM": draw.integers(0, 16, (rows, CODES)).astype(np.int32),
        "code_lengths_B": code_lengths,
        "spans_B2": np.zeros((rows, 2), np.int32),
        "weights_B": np.ones(rows, np.float32),
        "totals_2": np.array([np.sum(text_lengths + 1), np.sum(code_lengths + 4)], np.float32),
    }
    return {name: tf.constant(value) for name, value in (arrays | changed).items()}


def cut_rows(tensors, first, last):
    return {name: value if name == "totals_2" else value[first:last] for name, value in tensors.items()}


def make_step(dropout=0.0, loss_mean="tokens", gpt=MappingProxyType({}), **settings):
    settings = {"seed": 1, "weight_decay": 0.01, "uses_dropout": dropout > 0} | settings
    objective = GPTObjective(build_least_gpt(dropout=dropout, **gpt), loss_mean=loss_mean)
    return TrainStep(objective, StepSettings(**settings))


def read_weights(step):
    return {name: variable.numpy().copy() for name, variable in step.optimizer.variables.items()}


def read_means(step):
    return [part.numpy() for name, part in step.list_state() if "/mean/" in name]


def accumulate(step, batch):
    """The update of a batch whose first row comes alone."""
    first = step.compute(cut_rows(batch, 0, 1), MicroStep(0, 0, 2))
    step.apply(step.compute(cut_rows(batch, 1, ROWS), MicroStep(0, 1, 2), first), 1e-2)
    return read_weights(step)


def update(step, batch, number=0):
    return step.name_results(step.apply(step.compute(batch, MicroStep(number, 0, 1)), 1e-2).numpy())


def assert_weights(step, expected, atol=0.0):
    for name, value in read_weights(step).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=atol, err_msg=name)


def test_micro_batches_of_any_cut_give_the_update_of_the_big_batch_unless_their_means_count():
    batch, whole = make_tensors(), make_step(clip_norm=0.5)
    update(whole, batch)
    assert_weights(whole, accumulate(make_step(clip_norm=0.5), batch), atol=2e-5)
    other = accumulate(make_step(clip_norm=0.5, loss_mean="batches"), batch)
    assert max(np.abs(value - other[name]).max() for name, value in read_weights(whole).items()) > 1e-3
    halved, alone = (make_step(loss_mean="batches").compute(batch, MicroStep(0, 0, count)) for count in (2, 1))
    assert float(halved.loss) == pytest.approx(float(alone.loss) / 2, rel=1e-6)


@pytest.mark.parametrize("once", [True, False])
def test_rows_that_share_a_prompt_learn_as_if_each_had_it_whatever_they_are_cut_into(once):
    step, voices_B = make_step(gpt={"shares_prompts": once}), np.array([1, 0, 1, 1, 0, 0], np.int32)
    own = make_tensors()
    mel_VFM = own["mel_BFM"].numpy()[:2]
    own["mel_BFM"], shared = (
        tf.constant(mel_VFM[voices_B]),
        own | {"mel_BFM": tf.constant(mel_VFM), "voices_B": voices_B},
    )
    parts = [{name: tf.constant(value) for name, value in part.items()} for part in split_rows(shared, 2)]
    assert [len(part["weights_B"]) for part in parts] == [3, 3]
    told = [step.compute(batch, MicroStep(0, 0, 1)) for batch in (own, shared, *parts)]
    np.testing.assert_allclose(told[0].sums, told[1].sums, rtol=1e-5)
    for apart, together, *halves in zip(*(each.gradients for each in told), strict=True):
        np.testing.assert_allclose(apart, together, atol=1e-5)
        np.testing.assert_allclose(apart, halves[0] + halves[1], atol=1e-5)


def test_rows_that_only_fill_a_batch_count_nothing():
    batch, step = make_tensors(), make_step()
    filled = batch | {"weights_B": tf.constant([1, 1, 1, 1, 0, 0], tf.float32)}
    full, short = (step.compute(each, MicroStep(0, 0, 1)) for each in (filled, cut_rows(batch, 0, 4)))
    np.testing.assert_allclose(full.sums, short.sums, rtol=1e-5)
    for left, right in zip(full.gradients, short.gradients, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_an_update_that_is_not_finite_is_skipped_and_told_and_each_shape_is_traced_once():
    step = make_step()
    before = read_weights(step)
    told = update(step, BROKEN)
    assert (told["is_applied"], told["is_overflow"]) == (0, 0)
    assert_weights(step, before)
    assert int(step.optimizer.updates) == 0
    for number in (1, 2):
        assert update(step, make_tensors(seed=number), number)["is_applied"] == 1
    assert step.count_traces() == 2


BROKEN = make_tensors(mel_BFM=np.full([ROWS, FRAMES, 80], np.nan, np.float32))


def test_scaling_the_loss_changes_no_update_and_an_overflow_is_no_failure_of_the_model():
    plain, scaled = make_step(clip_norm=0.1), make_step(clip_norm=0.1, uses_loss_scale=True)
    for step in (plain, scaled):
        update(step, make_tensors())
    assert_weights(scaled, read_weights(plain), atol=1e-5)
    before, scale = read_weights(scaled), float(scaled.loss_scale.scale)
    told = update(scaled, BROKEN, 1)
    assert (told["is_applied"], told["is_overflow"]) == (0, 1)
    assert float(scaled.loss_scale.scale) == scale / 2
    assert_weights(scaled, before)
    scaled.loss_scale.scale.assign(1.0)
    assert update(scaled, BROKEN, 2)["is_overflow"] == 0
    for _ in range(CALM_UPDATES):
        scaled.loss_scale.note(tf.constant(True))
    assert float(scaled.loss_scale.scale) == 2.0


def test_the_norm_is_that_of_all_gradients_however_large_and_an_update_by_xla_is_the_same():
    gradients = [np.full(shape, 2.0, np.float32) for shape in ((3,), (200, 200), (5, 5))]
    assert float(measure_half_square(list(map(tf.constant, gradients)))) == pytest.approx(2 * (3 + 40000 + 25))
    plain, compiled = make_step(clip_norm=0.1), make_step(clip_norm=0.1, uses_xla=True)
    for step in (plain, compiled):
        update(step, make_tensors())
    assert (plain.xla_functions, compiled.xla_functions) == (0, 2)
    assert_weights(compiled, read_weights(plain), atol=1e-4)
    before = read_weights(compiled)
    assert update(compiled, BROKEN, 1)["is_applied"] == 0
    assert_weights(compiled, before)


def test_the_dropout_of_a_step_depends_on_its_place_alone_and_computing_changes_nothing():
    batch, step = make_tensors(), make_step(dropout=0.2)
    before = read_weights(step)
    turns = MicroStep(0, 0, 2), MicroStep(0, 1, 2), MicroStep(1, 0, 2)
    losses = [float(step.compute(batch, turn).loss) for turn in (*turns, *turns)]
    assert losses[:3] == losses[3:]
    assert float(make_step(dropout=0.2).compute(batch, turns[1]).loss) == losses[1]
    assert len(set(losses)) == 3
    parts = [float(step.compute(batch, turns[0], part=part).loss) for part in (0, 1, PARTS_OF_REPLICA)]
    assert parts[0] == losses[0]
    assert len({*parts, *losses}) == 5, "a part of a batch, and the rows of another device, have masks of their own"
    assert_weights(step, before)
    assert int(step.optimizer.updates) == 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_what_is_compiled_ahead_is_what_batches_take_and_changes_nothing(accumulation, caplog):
    caplog.set_level("INFO")
    step = make_step(dropout=0.1, uses_xla=True)
    before, batches = read_weights(step), [make_tensors(), make_tensors(rows=2)]
    updates = UpdateMaker(step, lambda _: 1e-2, accumulation=accumulation)
    shapes = [{name: (tuple(each.shape), each.dtype.name) for name, each in batch.items()} for batch in batches]
    noted = []
    updates.compile_ahead(shapes, 0, noted.append)
    assert noted == [1, 2]
    assert_weights(step, before)
    traces = step.count_traces()
    facts = SimpleNamespace(updates=0, micro_batch=0, micro_batches=accumulation, is_last_of_step=False)
    for batch in batches:
        updates.add(batch, facts)
    assert (step.count_traces(), step.xla_functions) == (traces, 2)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "XLA compiles the step for 6 clips of up to 12 codes (shape 1 of 2) ..."
    assert told[1].startswith("XLA compiled the step for 6 clips of up to 12 codes (shape 1 of 2) in ")
    assert told[3].endswith("; 0 left.")
    step.objective.list_phases = lambda step: [step, 9]
    updates.compile_ahead(shapes[:1], 0, noted.append)
    assert noted == [1, 2, 1, 2], "each shape in each phase"


def test_what_is_compiled_only_when_it_comes_is_said_and_the_first_validation_is_booked_as_tracing(caplog):
    caplog.set_level("INFO")
    step, batch = make_step(uses_xla=True), make_tensors()
    facts = SimpleNamespace(updates=0, micro_batch=0, micro_batches=1, is_last_of_step=True)
    updates, ledger = UpdateMaker(step, lambda _: 1e-2, accumulation=1), TimeLedger()
    updates.add(batch, facts)
    trained = SimpleNamespace(step=step, device="/CPU:0")
    saver = SimpleNamespace(trained=trained, data=SimpleNamespace(), progress=SimpleNamespace(step=1))
    log = SimpleNamespace(ledger=ledger, clock=StepClock(), listen=lambda *_: None)
    validation = ValidationRound(updates, saver, None, log, SimpleNamespace(is_chief=False))
    given = SimpleNamespace(tensors=batch, info=SimpleNamespace(facts=facts))
    for is_new in (True, False):
        before = ledger.read()
        validation.add(given, is_new=is_new)
        spent = {cause: seconds - before[cause] for cause, seconds in ledger.read().items()}
        assert (spent[Cause.TRACE] > 0, spent[Cause.VALIDATION] > 0) == (is_new, not is_new)
    told = [record.getMessage() for record in caplog.records]
    expected = [
        f"XLA {verb} the {what}"
        for what in ("update", "validation of a batch shape")
        for verb in ("compiles", "compiled")
    ]
    assert [re.split(",| in ", line)[0] for line in told] == expected


def test_the_first_update_is_adam_with_decoupled_decay_and_the_average_follows():
    step, name = make_step(ema_decay=0.9), "blocks.0.qkv.kernel"
    before = read_weights(step)
    gradients = step.compute(make_tensors(), MicroStep(0, 0, 1))
    step.apply(gradients, 1e-2)
    names, own = list(step.optimizer.variables), read_weights(step)
    for each in (name, "blocks.0.qkv.bias", "text_embedding"):
        gradient = gradients.gradients[names.index(each)].numpy()
        decay = 0.01 if each.endswith("kernel") else 0.0
        # The first step of Adam is the gradient's sign.
        expected = before[each] * (1 - 1e-2 * decay) - 1e-2 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(own[each], expected, atol=2e-5)
    for _ in range(2):
        with step.average.in_place():
            np.testing.assert_allclose(read_weights(step)[name], 0.9 * before[name] + 0.1 * own[name], atol=1e-6)
        assert_weights(step, own)
        # Skipped: nothing follows it.
        update(step, BROKEN, 1)


def test_averages_are_corrected_for_their_start_as_long_as_it_shows():
    """Of equal gradients each update is the learning rate long, also after thousands."""
    weight = SimpleNamespace(value=tf.Variable([1.0]), shape=(1,))
    optimizer = AdamW({"weight": weight}, frozenset(), 0.0, BETAS)
    for number in (1, 4, 5, 100, 9_000):
        optimizer.updates.assign(number - 1)
        for kept, beta in zip((optimizer._means[0], optimizer._squares[0]), BETAS, strict=True):
            kept.assign([(1 - beta ** (number - 1)) * 0.25 ** (1 + (beta == BETAS[1]))])
        before = float(weight.value[0])
        optimizer.apply([tf.constant([0.25])], 1e-3)
        assert before - float(weight.value[0]) == pytest.approx(1e-3, rel=1e-3), number


def test_weights_are_their_own_again_when_their_averages_do_not_fit(monkeypatch):
    variables = {name: SimpleNamespace(value=tf.Variable(1.0), shape=()) for name in "ab"}
    average = WeightAverage([Pack({name: variable}, frozenset()) for name, variable in variables.items()], 0.5)
    variables["a"].value.assign(2.0)
    monkeypatch.setattr(variables["b"].value, "assign", Mock(side_effect=[MemoryError, None]))
    with pytest.raises(MemoryError), average.in_place():
        pytest.fail("the exchange must fail")
    assert float(variables["a"].value) == 2.0


CARDS_CODE = """
import numpy as np
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.devices.machine import read_machine
from myxtts.devices.runtime import apply_plan
plan = plan_devices(PlanRequest(rehearsal=True, model_gpu=0, other_gpus=(1, 2)), read_machine())
apply_plan(plan)
from myxtts.training.model import check_variables
from myxtts.training.peers import open_strategy
from myxtts.utils.commons import get_device_context
from tests.training.test_step import MicroStep, list_held_twice, make_step, make_tensors, read_means, read_weights

options = {"clip_norm": 0.5, "uses_loss_scale": True, **OPTIONS}
with get_device_context(plan.model.device):
    alone = make_step(**options)
    with open_strategy(plan).scope():
        shared = make_step(**options)
    check_variables(shared.list_state(), [role.device for role in plan.trainers])
    for number, rows in enumerate((7, 2)):
        batch = make_tensors(rows=rows, seed=number)
        for step in (alone, shared):
            # As a run accumulates, nothing is computed before there are zeros to add to.
            computed = step.compute(batch, MicroStep(number, 0, 1), None if number else step.make_zero_gradients(0))
            if not number:
                held_twice = list_held_twice(step)
            step.apply(computed, 1e-2)
    sums = [step.evaluate(batch, "all").numpy() for step in (alone, shared)]
copies = [[copy.numpy() for copy in variable.values] for _, variable in shared.list_state()]
means = [read_means(step) for step in (alone, shared)]
report({
    "means": max(float(np.linalg.norm(ours - theirs) / (np.linalg.norm(ours) + 1e-9)) for ours, theirs in zip(*means, strict=True)),
    "held_twice": held_twice,
    "weights": float(max(np.abs(value - read_weights(alone)[name]).max() for name, value in read_weights(shared).items())),
    "sums": float(np.abs(sums[1] - sums[0]).max()),
    "alike": all((copy == of_first).all() for of_first, *others in copies for copy in others),
    "devices": [each.backing_device[-5:] for each in computed.gradients[0].values],
    "retraces": shared.count_retraces(),
})
"""


AS_ON_GPUS = {"fused_norms": True, "joins": True}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-5), ("mixed_float16", 2e-3)])
def test_devices_that_share_a_batch_make_the_update_of_one_and_keep_their_gradients(dtype, tolerance):
    """Three of them; for the last batch there are fewer rows than devices."""
    options = {"packed_elements": 3000, "gpt": AS_ON_GPUS | {"dtype": dtype}}
    found = run_code(f"OPTIONS = {options}\n{CARDS_CODE}")
    assert found["weights"] < tolerance
    assert found["means"] < tolerance
    assert found["sums"] < max(1e-3, 10 * tolerance)
    assert found["held_twice"] == [], "nor are weights, on any of them"
    assert found["alike"], "every copy is the same"
    assert found["devices"] == ["CPU:1", "CPU:2", "CPU:3"], "nothing is collected on one device before it is summed"
    assert found["retraces"] == 0


@pytest.mark.parametrize("uses_xla", [False, True])
def test_variables_updated_in_packs_are_updated_alike_saved_alike_and_held_once(uses_xla):
    options = {"clip_norm": 0.1, "ema_decay": 0.9, "uses_loss_scale": True}
    single, packed = make_step(**options), make_step(**options, packed_elements=3000, uses_xla=uses_xla)
    assert 3 < len(packed.optimizer.packs) < len(single.optimizer.packs)
    # As after a restart: loaded when the step is there.
    load_again(packed)
    for step in (single, packed):
        for number, batch in enumerate([make_tensors(), make_tensors(seed=1), BROKEN]):
            told = update(step, batch, number)
        assert told["is_overflow"] == 1
    assert_weights(packed, read_weights(single), atol=1e-4)
    expected, state = dict(single.list_state()), dict(packed.list_state())
    assert state.keys() == expected.keys()
    for name, variable in expected.items():
        assert tuple(state[name].shape) == tuple(variable.shape)
        np.testing.assert_allclose(state[name].numpy(), variable.numpy(), atol=1e-4, err_msg=name)
    own, averages = read_weights(packed), {name: part.numpy() for name, part in packed.average.list_state()}
    with packed.average.in_place():
        assert_weights(packed, averages)
    assert_weights(packed, own)
    assert list_held_twice(packed) == []
    # As after going back to a checkpoint.
    load_again(packed)
    assert len(list_held_twice(packed)) > 3
    packed.forget_weights()
    packed.compute(make_tensors(), MicroStep(3, 0, 1))
    assert list_held_twice(packed) == []


def load_again(step, factor=1.0):
    for variable in step.optimizer.variables.values():
        variable.value.assign(factor * variable.value)


def list_held_twice(step):
    """Variables that are not part of their pack, on any device; but those that are not aligned, which may be copied."""
    found = []
    for pack in step.optimizer.packs:
        wholes = list_addresses(pack.weights)
        for name, variable in pack.variables.items():
            starts = [own - whole for own, whole in zip(list_addresses(variable.value), wholes, strict=True)]
            is_inside = all(0 <= start < 4 * np.prod(pack.shape) for start in starts)
            if not is_inside and 4 * np.prod(variable.shape) % 256 == 0:
                found.append(name)
    return found


def list_addresses(variable):
    copies = getattr(variable, "values", (variable,))
    return [np.asarray(memoryview(copy.read_value())).ctypes.data for copy in copies]


def test_a_part_of_a_packed_state_is_set_alone():
    step = make_step(packed_elements=1 << 20)
    state = dict(step.list_state())
    parts = {name: part for name, part in state.items() if name.startswith("mean/")}
    for number, part in enumerate(parts.values()):
        part.assign(np.full(part.shape, number, np.float32))
    for number, part in enumerate(parts.values()):
        np.testing.assert_array_equal(tf.convert_to_tensor(part), np.full(part.shape, number), str(number))
    assert not any(np.any(part.numpy()) for name, part in state.items() if name.startswith("square/"))


@pytest.mark.parametrize("accumulates", [False, True])
def test_weights_narrowed_in_packs_once_for_an_update_give_the_gradients_of_weights_narrowed_one_by_one(accumulates):
    batch = make_tensors()
    options = {"dropout": 0.2, "gpt": {"dtype": "mixed_bfloat16"}}
    plain, packed = (make_step(**options, packed_elements=elements) for elements in (0, 1 << 20))
    call, called = packed._call, []
    packed._call = lambda work, *given, **static: (called.append(work.__name__), call(work, *given, **static))[1]

    def compute(step):
        computed = step.compute(batch, MicroStep(0, 0, 1))
        return step.compute(batch, MicroStep(0, 1, 1), computed) if accumulates else computed

    computed = assert_alike(compute, plain, packed)
    assert called.count("_narrow") == 1
    # Of an update's weights, and of those that were loaded, others are made.
    packed.apply(computed, 1e-2)
    copy_weights(packed, plain)
    assert_alike(compute, plain, packed)
    load_again(packed, factor=0.5)
    packed.forget_weights()
    copy_weights(packed, plain)
    assert_alike(compute, plain, packed)
    assert called.count("_narrow") == 3
    assert plain.count_retraces() == packed.count_retraces() == 0


def test_weights_that_are_read_again_for_the_backward_pass_are_not_narrowed_before():
    """Their gradients would be lost: what is computed again has gradients of variables only."""
    options = {"gpt": {"dtype": "mixed_bfloat16", "checkpointing": True}}
    plain, packed = (make_step(**options, packed_elements=elements) for elements in (0, 1 << 20))
    assert_alike(lambda step: step.compute(make_tensors(), MicroStep(0, 0, 1)), plain, packed)


def assert_alike(compute, plain, packed):
    """That gradients are, to the last bit."""
    expected, computed = compute(plain), compute(packed)
    named = {}
    for pack, joined in zip(packed.optimizer.packs, computed.gradients, strict=True):
        named |= zip(pack.variables, pack.cut(joined), strict=True)
    for name, gradient in zip(plain.optimizer.variables, expected.gradients, strict=True):
        np.testing.assert_array_equal(named[name].numpy(), gradient.numpy(), err_msg=name)
    return computed


def copy_weights(source, target):
    for name, variable in target.optimizer.variables.items():
        variable.value.assign(tf.convert_to_tensor(source.optimizer.variables[name].value))


@pytest.mark.parametrize("shapes", [[(64,), (2, 32), (128,)], [(64,), (3,), (64, 2), (5, 1)], [(3,), (5,)]])
def test_a_pack_is_cut_into_what_was_joined_and_shrinks_what_decays(shapes):
    arrays = {str(number): np.full(shape, number + 1, np.float32) for number, shape in enumerate(shapes)}
    variables = {name: SimpleNamespace(value=tf.Variable(array), shape=array.shape) for name, array in arrays.items()}
    pack = Pack(variables, frozenset("01"))
    pack.collect(tf.constant(0.5))
    pack.hand_out(pack.weights)
    for name, array in arrays.items():
        np.testing.assert_array_equal(variables[name].value, array * (0.5 if name in "01" else 1), err_msg=name)
        np.testing.assert_array_equal(dict(pack.list_parts(pack.weights))[name].numpy(), variables[name].value)


def test_an_update_in_one_pack_asks_a_gpu_for_one_kernel_for_each_variable_and_few_more():
    step = make_step(clip_norm=0.5, packed_elements=1 << 20)
    update(step, make_tensors())
    assert len(step.optimizer.packs) == 1
    assert count_launches(step.traced["_apply_gradients"]).total() <= len(step.optimizer.variables) + 25
