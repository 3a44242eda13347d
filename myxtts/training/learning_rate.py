"""The learning rate of an update: a pure function of its number, so that a resumed run goes on exactly."""

from __future__ import annotations

import math

from myxtts.config import TrainingConfig

FINAL_SHARE = 0.1
"""Of the learning rate, at the end of a cosine."""


def compute_learning_rate(training: TrainingConfig, step: int, total_steps: int) -> float:
    """The learning rate of update `step`, counted from 0.

    Args:
        training: the peak, the shape and the warm-up.
        total_steps: updates of the whole run; a cosine has reached its end there, and stays there.
    """
    peak = training.learning_rate
    if step < training.warmup_steps:
        return peak * (step + 1) / training.warmup_steps
    if training.lr_schedule == "constant":
        return peak
    done = (step - training.warmup_steps) / max(1, total_steps - training.warmup_steps)
    fallen = (1 - math.cos(math.pi * min(done, 1.0))) / 2
    return peak * (1 - (1 - FINAL_SHARE) * fallen)
