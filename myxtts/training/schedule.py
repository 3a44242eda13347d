"""How long a run trains, how often it logs, validates and saves, and the learning rate of each update; its peak, where none is given, is of
`config/presets.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from myxtts.config import TrainingConfig, XTTSConfig
from myxtts.data.sampler import IndexSampler

LEAST_VALIDATION_INTERVAL = 100
"""Updates; a small corpus has a new epoch every few of them."""
FREE_SHARE = 0.3
"""Of a codec's updates, at the beginning, without codes."""


@dataclass(frozen=True)
class Schedule:
    """When a stage of a run does what, in updates."""

    training: TrainingConfig
    end_step: int
    """Updates of the whole stage."""
    validation_interval: int
    checkpoint_interval: int

    @property
    def saves_best(self) -> bool:
        """Whether a validation with a better loss than all before is saved even if no checkpoint is due."""
        return self.training.keep_best > 0 and self.training.best_metric == "val_loss"

    def validates_after(self, step: int) -> bool:
        """Whether a round of validation is due after so many updates."""
        return step % self.validation_interval == 0 or step == self.end_step

    def choose_rate(self, step: int) -> float:
        """The learning rate of an update."""
        return compute_learning_rate(self.training, step, self.end_step)


def plan_schedule(config: XTTSConfig, sampler: IndexSampler, stage: str) -> Schedule:
    """What settings and data come to, in updates."""
    training = config.training
    validation_interval = training.validation_interval
    if validation_interval == "auto":
        epochs = -(-LEAST_VALIDATION_INTERVAL // sampler.steps_per_epoch)
        validation_interval = epochs * sampler.steps_per_epoch
    checkpoint_interval = training.checkpoint_interval
    if checkpoint_interval == "auto":
        checkpoint_interval = validation_interval
    return Schedule(training, count_updates(config, sampler, stage), validation_interval, checkpoint_interval)


def count_updates(config: XTTSConfig, sampler: IndexSampler, stage: str) -> int:
    """Updates of the whole run.

    A codec's training is measured in updates (`codec_steps`) unless its own run was given a length.
    """
    training = config.training
    given = "epochs" in config.given_values().get("training", {}) or training.max_steps is not None
    if stage == "codec" and (training.stage != "codec" or not given):
        return training.codec_steps
    whole = training.epochs * sampler.steps_per_epoch
    return whole if training.max_steps is None else min(whole, training.max_steps)


def count_free_steps(starts: Iterable[tuple[int, int]]) -> int:
    """Updates of a codec's training that are made without codes, at its beginning.

    They are a share of its length, which another start may change. A codebook that was drawn by then stays: to take it
    away again would undo what was learnt with it.

    Args:
        starts: of the run, this one last: updates that were done, and updates of the whole run as it was then.
    """
    free_steps = 0
    for step, end_step in starts:
        if step <= free_steps:
            free_steps = max(step, int(end_step * FREE_SHARE))
    return free_steps


FINAL_SHARE = 0.1
"""Of the learning rate, at the end of a cosine."""


def compute_learning_rate(training: TrainingConfig, step: int, total_steps: int) -> float:
    """The learning rate of update `step`, counted from 0."""
    peak = training.learning_rate
    if step < training.warmup_steps:
        return peak * (step + 1) / training.warmup_steps
    if training.lr_schedule == "constant":
        return peak
    done = (step - training.warmup_steps) / max(1, total_steps - training.warmup_steps)
    fallen = (1 - math.cos(math.pi * min(done, 1.0))) / 2
    return peak * (1 - (1 - FINAL_SHARE) * fallen)
