"""Micro-batches become updates, in parts where memory is short."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.order import Kind
from myxtts.training.errors import GradientMemoryError, UpdateMemoryError, ValidationMemoryError
from myxtts.training.step import UpdateMaker, split_rows
from tests.training.test_step import ROWS, make_step, make_tensors, read_weights


def describe(updates=0, micro_batch=0, micro_batches=1):
    return BatchFacts(0, Kind.TRAIN, updates, micro_batch, micro_batches, 0, 0, ROWS, 6000, 7200)


def make_updates(step, **options):
    return UpdateMaker(step, lambda number: 1e-2, accumulation=1, **options)


class Narrow:
    """Makes a step run out of memory with more than so many rows, and counts what it has computed."""

    def __init__(self, step, rows):
        self.seen = []
        self._compute, self._rows = step.compute, rows
        step.compute = self.compute

    def compute(self, batch, *others):
        rows = len(batch["weights_B"])
        self.seen.append(rows)
        if rows > self._rows:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return self._compute(batch, *others)


def test_rows_are_cut_into_parts_that_together_are_the_batch():
    batch = make_tensors()
    parts = list(split_rows(batch, 4))
    assert [len(part["weights_B"]) for part in parts] == [2, 2, 2]
    for name, tensor in batch.items():
        if name == "totals_2":
            assert all(part[name] is tensor for part in parts)
        else:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), tensor)


def test_halves_give_the_update_of_the_whole_and_stay(caplog):
    batch, whole, halved = make_tensors(), make_step(), make_step()
    expected = make_updates(whole).add(batch, describe())
    narrow, updates = Narrow(halved, rows=3), make_updates(halved)
    result = updates.add(batch, describe())
    np.testing.assert_allclose(result, expected, rtol=1e-4)
    for name, value in read_weights(whole).items():
        np.testing.assert_allclose(read_weights(halved)[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    assert narrow.seen == [6, 3, 3]
    assert "Out of memory in step 0 (micro-batch 1 of 1, 6 clips padded to 1200 samples each)" in caplog.text
    updates.add(batch, describe(updates=1))
    assert narrow.seen[3:] == [3, 3], "what did not fit once is not tried again"


def test_a_failure_in_the_second_micro_batch_keeps_the_first():
    batch, whole, halved = make_tensors(), make_step(), make_step()
    expected = [make_updates(whole).add(batch, describe(0, number, 2)) for number in range(1)]
    assert expected == [None]
    reference = UpdateMaker(whole, lambda number: 1e-2, accumulation=2)
    reference.add(batch, describe(0, 0, 2))
    wanted = reference.add(batch, describe(0, 1, 2))
    updates = UpdateMaker(halved, lambda number: 1e-2, accumulation=2)
    updates.add(batch, describe(0, 0, 2))
    Narrow(halved, rows=3)
    np.testing.assert_allclose(updates.add(batch, describe(0, 1, 2)), wanted, rtol=1e-4)


def test_one_row_that_does_not_fit_ends_it_with_nothing_changed():
    step = make_step()
    before = read_weights(step)
    Narrow(step, rows=0)
    with pytest.raises(GradientMemoryError, match=r"step 7 .*6 clips .*in 8 parts"):
        make_updates(step).add(make_tensors(), describe(updates=7))
    for name, value in read_weights(step).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_without_retries_the_first_failure_ends_it():
    step = make_step()
    narrow = Narrow(step, rows=3)
    with pytest.raises(GradientMemoryError, match=r"--batch-size .* --on-oom retry"):
        make_updates(step, retries=False).add(make_tensors(), describe())
    assert narrow.seen == [6]


def test_a_failure_inside_the_update_says_that_the_model_is_of_no_use(monkeypatch):
    step = make_step()

    def fail(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(step, "apply", fail)
    with pytest.raises(UpdateMemoryError, match=r"update of step 3.*nothing of this step is kept.*--model-gpu-memory"):
        make_updates(step).add(make_tensors(), describe(updates=3))


def test_a_failure_before_the_gradients_says_that_the_model_is_of_no_use(monkeypatch):
    step = make_step()

    def fail(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(step.objective, "begin_step", fail)
    with pytest.raises(UpdateMemoryError, match=r"update of step 3.*--model-gpu-memory"):
        make_updates(step).add(make_tensors(), describe(updates=3))


class NarrowEvaluation:
    """Makes evaluating run out of memory with more than so many rows."""

    def __init__(self, step, rows):
        self.seen = []
        self._evaluate, self._rows = step.evaluate, rows
        step.evaluate = self.evaluate

    def evaluate(self, batch, phase):
        self.seen.append(len(batch["weights_B"]))
        if self.seen[-1] > self._rows:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return self._evaluate(batch, phase)


VALIDATION = BatchFacts(7, Kind.VALIDATION, 3, 0, 1, 0, 0, ROWS, 6000, 7200)


def test_a_validation_that_does_not_fit_is_made_in_parts_and_training_is_not(caplog):
    step, batch = make_step(), make_tensors()
    updates, narrow = make_updates(step), NarrowEvaluation(step, rows=ROWS)
    whole = updates.evaluate(batch, VALIDATION, "all")
    narrow._rows = 2
    np.testing.assert_allclose(updates.evaluate(batch, VALIDATION, "all"), whole, rtol=1e-5)
    assert narrow.seen == [6, 6, 3, 2, 2, 2]
    assert "validation after 3 updates (batch 7, 6 clips padded to 1200 samples each)" in caplog.text
    updates.evaluate(batch, VALIDATION, "all")
    assert narrow.seen[6:] == [2, 2, 2], "what did not fit once is not tried again"
    assert updates.parts == 1


@pytest.mark.parametrize("retries", [True, False])
def test_a_validation_of_which_one_row_does_not_fit_names_the_batch_and_the_way_out(retries):
    step = make_step()
    NarrowEvaluation(step, rows=0 if retries else 3)
    expected = r"validation after 3 updates \(batch 7, 6 clips.*--model-gpu-memory.*--validation-interval"
    with pytest.raises(ValidationMemoryError, match=expected if retries else expected + r".*--on-oom retry"):
        make_updates(step, retries=retries).evaluate(make_tensors(), VALIDATION, "all")
