"""What the configurator begins with: the defaults, or where there is no memory for them, a batch that fits. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable

from myxtts.config import XTTSConfig
from myxtts.monitoring.errors import MemoryBillError
from myxtts.training.modes.measuring_process import MeasuringKilledError
from myxtts.training.tuning.candidates import ask_batch, halve_batch
from myxtts.training.tuning.search import RunTrial, Search, Trial, TrialResult, search_settings


def find_start(config: XTTSConfig, run_trial: RunTrial, tell: Callable[[str], None]) -> tuple[Search, TrialResult]:
    """The settings to begin with and what they showed, and what the defaults did.

    Raises `MemoryBillError` where there is no memory for the defaults, nor for as many clips per update in smaller batches.
    """
    tell("trying the defaults")
    try:
        before = run_trial(Trial())
    except MeasuringKilledError as error:
        # It took no note of what would fit: there is nothing left but to try.
        before = TrialResult(math.inf, 0.0, fitting=halve_batch(config), refusal=str(error))
    if before.fits:
        return Search(Trial(), before, ()), before
    start = search_settings(Trial(), before, [ask_batch(config, before.fitting)], run_trial, tell)
    if not start.result.fits:
        (answer,) = start.answers
        raise MemoryBillError(
            f"{before.refusal}\nThe configurator needs a batch that fits, but found none ({answer.evidence}). Give a smaller "
            "--batch-size with more --grad-accum."
        )
    return start, before
