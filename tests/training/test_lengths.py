"""Lengths of a run in updates."""

import numpy as np
import pytest

from myxtts.cli.train import build_parser
from myxtts.config import XTTSConfig
from myxtts.config.resolve import resolve_config
from myxtts.data.buckets import plan_buckets
from myxtts.data.sampler import IndexSampler
from myxtts.training.lengths import choose_checkpoint_interval, choose_validation_interval, count_updates


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
    training = XTTSConfig().training
    interval = choose_validation_interval(training, make_sampler(120))
    assert interval == 120
    assert interval % make_sampler(120).steps_per_epoch == 0
    assert choose_checkpoint_interval(training, interval) == interval


def test_intervals_that_were_given_are_kept():
    training = XTTSConfig(training={"validation_interval": 7, "checkpoint_interval": 3}).training
    assert choose_validation_interval(training, make_sampler(40)) == 7
    assert choose_checkpoint_interval(training, 7) == 3
