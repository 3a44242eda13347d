"""Lengths of a run in updates, and the learning rate as a pure function of the step."""

from itertools import pairwise

import numpy as np
import pytest

from myxtts.config import TrainingConfig, XTTSConfig
from myxtts.data.buckets import plan_buckets
from myxtts.data.sampler import IndexSampler
from myxtts.training.schedule import FINAL_SHARE, compute_learning_rate, count_free_steps, count_updates, plan_schedule


def make_sampler(clips, batch=4, accumulation=1):
    plan = plan_buckets(np.full(clips, 22050), np.full(clips, 9), batch_size=batch)
    return IndexSampler(plan, seed=0, accumulation=accumulation)


@pytest.mark.parametrize(
    ("settings", "stage", "updates"),
    [
        ({"epochs": 3}, "gpt", 30),
        ({"epochs": 3, "max_steps": 7}, "gpt", 7),
        ({"epochs": 3, "max_steps": 700}, "gpt", 30),
        ({"codec_steps": 55}, "codec", 55),
        ({"codec_steps": 55, "max_steps": 7}, "codec", 55),
        ({"stage": "codec", "codec_steps": 55}, "codec", 55),
        ({"stage": "codec", "max_steps": 7}, "codec", 7),
        ({"stage": "codec", "epochs": 2}, "codec", 20),
    ],
)
def test_a_run_has_as_many_updates_as_was_asked(settings, stage, updates):
    assert count_updates(XTTSConfig(training=settings), make_sampler(40), stage) == updates


def test_intervals_follow_the_epochs_of_a_small_corpus_unless_they_are_given():
    schedule = plan_schedule(XTTSConfig(), make_sampler(120), "gpt")
    assert (schedule.validation_interval, schedule.checkpoint_interval) == (120, 120), "four epochs of 30 updates"
    config = XTTSConfig(training={"validation_interval": 7, "checkpoint_interval": 3, "max_steps": 10})
    schedule = plan_schedule(config, make_sampler(40), "gpt")
    assert (schedule.validation_interval, schedule.checkpoint_interval) == (7, 3)
    assert [step for step in range(1, 11) if schedule.validates_after(step)] == [7, 10], "and behind the last update"


@pytest.mark.parametrize(
    ("starts", "free_steps"),
    [
        ([(0, 100)], 30),
        # Longer before the codebook was drawn: as if it had always been so long. Afterwards: what was drawn stays.
        ([(0, 100), (20, 200)], 60),
        ([(0, 100), (31, 200)], 30),
        ([(0, 100), (100, 200)], 30),
        ([(0, 100), (100, 200), (200, 400)], 30),
        # A checkpoint of step 30 is from before the draw.
        ([(0, 100), (30, 200)], 60),
        # Shorter: the codebook is drawn as soon as it can be.
        ([(0, 100), (20, 50)], 20),
        # Back to an older checkpoint, from before the draw.
        ([(0, 100), (100, 200), (10, 200)], 60),
    ],
)
def test_a_codebook_that_was_drawn_stays_whatever_the_length(starts, free_steps):
    assert count_free_steps(starts) == free_steps


def make_training(**settings):
    return TrainingConfig(learning_rate=1e-3, **settings)


def test_warm_up_rises_in_equal_steps_to_the_peak():
    training = make_training(warmup_steps=4, lr_schedule="constant")
    rates = [compute_learning_rate(training, step, 100) for step in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_cosine_falls_to_its_end_and_stays_there():
    training = make_training(warmup_steps=10, lr_schedule="cosine")
    rates = [compute_learning_rate(training, step, 110) for step in range(10, 200)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[50] == pytest.approx(1e-3 * (1 + FINAL_SHARE) / 2)
    assert rates[100:] == pytest.approx([FINAL_SHARE * 1e-3] * 90)
    assert all(a >= b for a, b in pairwise(rates))


def test_a_run_shorter_than_its_warm_up_has_a_rate():
    # The earlier system's schedule turned NaN when its warm-up was over.
    training = make_training(warmup_steps=100, lr_schedule="cosine")
    assert 0 < compute_learning_rate(training, 5, 6) < 1e-3
    assert compute_learning_rate(training, 40_000, 6) == pytest.approx(FINAL_SHARE * 1e-3)
