"""How long a run is, and how often it does what besides training: from settings and data to numbers of updates."""

from __future__ import annotations

from myxtts.config import TrainingConfig, XTTSConfig
from myxtts.data.sampler import IndexSampler

LEAST_VALIDATION_INTERVAL = 100
"""Updates; a small corpus has a new epoch every few of them."""


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


def choose_validation_interval(training: TrainingConfig, sampler: IndexSampler) -> int:
    """Updates between two validations."""
    if training.validation_interval != "auto":
        return training.validation_interval
    epochs = -(-LEAST_VALIDATION_INTERVAL // sampler.steps_per_epoch)
    return epochs * sampler.steps_per_epoch


def choose_checkpoint_interval(training: TrainingConfig, validation_interval: int) -> int:
    """Updates between two checkpoints."""
    return validation_interval if training.checkpoint_interval == "auto" else training.checkpoint_interval
