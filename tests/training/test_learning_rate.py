"""The learning rate as a pure function of the step."""

from itertools import pairwise

import pytest

from myxtts.config import TrainingConfig
from myxtts.training.schedule import FINAL_SHARE, compute_learning_rate


def make(**settings):
    return TrainingConfig(learning_rate=1e-3, **settings)


def test_warm_up_rises_in_equal_steps_to_the_peak():
    training = make(warmup_steps=4, lr_schedule="constant")
    rates = [compute_learning_rate(training, step, 100) for step in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_cosine_falls_to_its_end_and_stays_there():
    training = make(warmup_steps=10, lr_schedule="cosine")
    rates = [compute_learning_rate(training, step, 110) for step in range(10, 200)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[50] == pytest.approx(1e-3 * (1 + FINAL_SHARE) / 2)
    assert rates[100:] == pytest.approx([FINAL_SHARE * 1e-3] * 90)
    assert all(a >= b for a, b in pairwise(rates))


def test_a_run_shorter_than_its_warm_up_has_a_rate():
    # The earlier system's schedule turned NaN when its warm-up was over.
    training = make(warmup_steps=100, lr_schedule="cosine")
    assert 0 < compute_learning_rate(training, 5, 6) < 1e-3
    assert compute_learning_rate(training, 40_000, 6) == pytest.approx(FINAL_SHARE * 1e-3)
