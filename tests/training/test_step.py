"""The compiled step: gradients that add up, updates that skip what is not finite, and no side effects before them."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.gpt import GPT
from myxtts.models.initialise import initialise_weights
from myxtts.training.objectives import GPTObjective
from myxtts.training.step import MicroStep, StepSettings, TrainStep
from tests.models.small import SIZE

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


def make_step(dropout=0.0, loss_mean="tokens", **settings):
    settings = {"seed": 1, "weight_decay": 0.01, "uses_dropout": dropout > 0} | settings
    return TrainStep(GPTObjective(build_least_gpt(dropout=dropout), loss_mean=loss_mean), StepSettings(**settings))


def read_weights(step):
    return {name: variable.numpy().copy() for name, variable in step.optimizer.variables.items()}


def test_micro_batches_of_any_cut_give_the_update_of_the_big_batch():
    batch = make_tensors()
    whole, parts = make_step(clip_norm=0.5), make_step(clip_norm=0.5)
    whole.apply(whole.compute(batch, MicroStep(0, 0, 1)), 1e-2)
    first = parts.compute(cut_rows(batch, 0, 1), MicroStep(0, 0, 2))
    parts.apply(parts.compute(cut_rows(batch, 1, ROWS), MicroStep(0, 1, 2), first), 1e-2)
    for name, value in read_weights(whole).items():
        np.testing.assert_allclose(read_weights(parts)[name], value, atol=2e-5, err_msg=name)


def test_the_mean_of_batch_means_is_another_update():
    batch = make_tensors()
    tokens, batches = make_step(), make_step(loss_mean="batches")
    updated = []
    for step in (tokens, batches):
        first = step.compute(cut_rows(batch, 0, 1), MicroStep(0, 0, 2))
        step.apply(step.compute(cut_rows(batch, 1, ROWS), MicroStep(0, 1, 2), first), 1e-2)
        updated.append(read_weights(step))
    assert max(np.abs(updated[0][name] - updated[1][name]).max() for name in updated[0]) > 1e-3


def test_rows_that_only_fill_a_batch_count_nothing():
    batch = make_tensors()
    weights = np.array([1, 1, 1, 1, 0, 0], np.float32)
    filled = batch | {"weights_B": tf.constant(weights)}
    full, short = make_step(), make_step()
    a = full.compute(filled, MicroStep(0, 0, 1))
    b = short.compute(cut_rows(batch, 0, 4), MicroStep(0, 0, 1))
    np.testing.assert_allclose(a.sums, b.sums, rtol=1e-5)
    for left, right in zip(a.gradients, b.gradients, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_computing_gradients_changes_nothing():
    step = make_step(dropout=0.1)
    before = read_weights(step)
    step.compute(make_tensors(), MicroStep(0, 0, 1))
    assert all(np.array_equal(before[name], value) for name, value in read_weights(step).items())
    assert int(step.optimizer.updates) == 0


def test_an_update_that_is_not_finite_is_skipped_and_told():
    step = make_step()
    before = read_weights(step)
    broken = make_tensors() | {"mel_BFM": tf.fill([ROWS, FRAMES, 80], np.float32("nan"))}
    told = step.name_results(step.apply(step.compute(broken, MicroStep(0, 0, 1)), 1e-2).numpy())
    assert told["is_applied"] == 0
    assert told["is_overflow"] == 0
    assert all(np.array_equal(before[name], value) for name, value in read_weights(step).items())
    assert int(step.optimizer.updates) == 0
    told = step.name_results(step.apply(step.compute(make_tensors(), MicroStep(1, 0, 1)), 1e-2).numpy())
    assert told["is_applied"] == 1


def test_an_overflow_of_scaled_gradients_is_no_failure_of_the_model():
    step = make_step(uses_loss_scale=True)
    scale = float(step.loss_scale.scale)
    broken = make_tensors() | {"mel_BFM": tf.fill([ROWS, FRAMES, 80], np.float32("nan"))}
    told = step.name_results(step.apply(step.compute(broken, MicroStep(0, 0, 1)), 1e-2).numpy())
    assert (told["is_applied"], told["is_overflow"]) == (0, 1)
    assert float(step.loss_scale.scale) == scale / 2
    step.loss_scale.scale.assign(1.0)
    told = step.name_results(step.apply(step.compute(broken, MicroStep(1, 0, 1)), 1e-2).numpy())
    assert (told["is_applied"], told["is_overflow"]) == (0, 0)


def test_scaling_the_loss_changes_no_update():
    plain, scaled = make_step(clip_norm=0.1), make_step(clip_norm=0.1, uses_loss_scale=True)
    for step in (plain, scaled):
        step.apply(step.compute(make_tensors(), MicroStep(0, 0, 1)), 1e-2)
    for name, value in read_weights(plain).items():
        np.testing.assert_allclose(read_weights(scaled)[name], value, atol=1e-5, err_msg=name)


def test_the_dropout_of_a_step_depends_on_its_place_alone():
    batch = make_tensors()
    losses = {}
    for turn in (MicroStep(0, 0, 2), MicroStep(0, 1, 2), MicroStep(1, 0, 2)):
        again = [float(make_step(dropout=0.2).compute(batch, turn).loss) for _ in range(2)]
        assert again[0] == again[1]
        losses[turn] = again[0]
    assert len(set(losses.values())) == 3


def test_each_shape_is_traced_once():
    step = make_step()
    for turn in range(3):
        step.apply(step.compute(make_tensors(seed=turn), MicroStep(turn, 0, 1)), 1e-3)
    assert step.count_traces() == 2


def test_the_first_update_is_adam_with_decoupled_decay():
    step = make_step()
    before = read_weights(step)
    gradients = step.compute(make_tensors(), MicroStep(0, 0, 1))
    step.apply(gradients, 1e-2)
    names = list(step.optimizer.variables)
    for name in ("blocks.0.qkv.kernel", "blocks.0.qkv.bias", "text_embedding"):
        gradient = gradients.gradients[names.index(name)].numpy()
        decay = 0.01 if name.endswith("kernel") else 0.0
        # The first step of Adam is the gradient's sign.
        expected = before[name] * (1 - 1e-2 * decay) - 1e-2 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(read_weights(step)[name], expected, atol=2e-5)


def test_the_average_follows_the_weights_and_can_stand_in_for_them():
    step = make_step(ema_decay=0.9)
    start = read_weights(step)["blocks.0.qkv.kernel"]
    step.apply(step.compute(make_tensors(), MicroStep(0, 0, 1)), 1e-2)
    own = read_weights(step)["blocks.0.qkv.kernel"]
    with step.average.in_place():
        np.testing.assert_allclose(read_weights(step)["blocks.0.qkv.kernel"], 0.9 * start + 0.1 * own, atol=1e-6)
    assert np.array_equal(read_weights(step)["blocks.0.qkv.kernel"], own)


@pytest.mark.parametrize("settings", [{}, {"ema_decay": 0.9, "uses_loss_scale": True}])
def test_state_names_every_variable_of_the_step(settings):
    step = make_step(**settings)
    names = [name for name, _ in step.list_state()]
    assert len(names) == len(set(names))
    per_weight = 3 if settings else 2
    assert len(names) == per_weight * len(step.optimizer.variables) + (3 if settings else 1)
