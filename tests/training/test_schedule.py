"""Lengths of a run in updates."""

import numpy as np
import pytest

from myxtts.cli.train import build_parser
from myxtts.config import XTTSConfig
from myxtts.config.sources import resolve_config
from myxtts.data.buckets import plan_buckets
from myxtts.data.sampler import IndexSampler
from myxtts.training.schedule import count_free_steps, count_updates, plan_schedule


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


def test_epochs_given_by_a_flag_count_as_given():
    given = build_parser("train").parse_all(["--stage", "codec", "--epochs", "2"]).given
    config = resolve_config(flags=given, environ={})
    assert count_updates(config, make_sampler(40), "codec") == 20


def test_intervals_follow_the_epochs_of_a_small_corpus():
    schedule = plan_schedule(XTTSConfig(), make_sampler(120), "gpt")
    assert schedule.validation_interval == 120
    assert schedule.validation_interval % make_sampler(120).steps_per_epoch == 0
    assert schedule.checkpoint_interval == 120


def test_intervals_that_were_given_are_kept():
    config = XTTSConfig(training={"validation_interval": 7, "checkpoint_interval": 3})
    schedule = plan_schedule(config, make_sampler(40), "gpt")
    assert (schedule.validation_interval, schedule.checkpoint_interval) == (7, 3)


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
