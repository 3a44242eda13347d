"""Workers that share a batch make the update of the whole, and decide alike."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.order import Kind
from myxtts.training.errors import GradientMemoryError
from myxtts.training.step import Gradients, UpdateMaker
from tests.training.test_step import ROWS, cut_rows, make_step, make_tensors, read_weights
from tests.training.test_updates import Narrow

RATE = 1e-2


def describe(micro_batch=0, micro_batches=1):
    return BatchFacts(0, Kind.TRAIN, 0, micro_batch, micro_batches, 0, 0, ROWS, 6000, 7200)


class Stopped(Exception):
    """Where a worker would wait for the others."""


def compute_share(step, batch, worker=0):
    """What a worker gives into the sum."""
    given = []

    def hold(gradients):
        given.append(gradients)
        raise Stopped

    maker = UpdateMaker(step, lambda number: RATE, accumulation=1, sum_workers=hold, worker=worker)
    with pytest.raises(Stopped):
        maker.add(batch, describe())
    return given[0]


def add_up(*shares):
    return Gradients(*tf.nest.map_structure(tf.add, *shares))


@pytest.fixture(scope="module")
def step():
    """Of both workers: they have the same weights."""
    return make_step(clip_norm=0.5, uses_loss_scale=True)


def test_an_overflow_of_one_worker_is_skipped_by_all(step):
    batch, before = make_tensors(), read_weights(step)
    spoilt = cut_rows(batch, 3, ROWS)
    spoilt["mel_BFM"] = spoilt["mel_BFM"] * np.inf
    total = add_up(compute_share(step, cut_rows(batch, 0, 3)), compute_share(step, spoilt, worker=1))
    result = step.name_results(step.apply(total, RATE))
    assert (result["is_applied"], result["is_overflow"]) == (0, 1)
    for name, value in read_weights(step).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_two_workers_make_the_update_of_one(step):
    batch, alone = make_tensors(), make_step(clip_norm=0.5)
    expected = UpdateMaker(alone, lambda number: RATE, accumulation=1).add(batch, describe())
    halves = cut_rows(batch, 0, 3), cut_rows(batch, 3, ROWS)
    total = add_up(*(compute_share(step, half, worker) for worker, half in enumerate(halves)))
    np.testing.assert_allclose(step.apply(total, RATE), expected, rtol=1e-4)
    for name, value in read_weights(alone).items():
        np.testing.assert_allclose(read_weights(step)[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_workers_draw_dropout_masks_of_their_own(monkeypatch):
    seen = []
    step = make_step()
    monkeypatch.setattr(step, "compute", lambda batch, turn, before, part: seen.append(part))
    for worker in (0, 1, 2):
        maker = UpdateMaker(
            step, lambda number: RATE, accumulation=1, sum_workers=lambda gradients: gradients, worker=worker
        )
        maker.parts = 2
        monkeypatch.setattr(step, "make_zero_gradients", lambda number: None)
        with pytest.raises(AssertionError):
            maker.add(make_tensors(), describe())
    assert len(set(seen)) == 6, "no two parts of any worker have the same"


def test_a_worker_that_runs_out_of_memory_does_not_go_on_alone():
    step = make_step()
    narrow = Narrow(step, rows=3)
    maker = UpdateMaker(step, lambda number: RATE, accumulation=1, sum_workers=lambda gradients: gradients)
    with pytest.raises(GradientMemoryError, match="--batch-size") as failure:
        maker.add(make_tensors(), describe())
    assert narrow.seen == [6], "others would have to cut their batches too"
    assert "--on-oom" not in str(failure.value), "it would not help"
