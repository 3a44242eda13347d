"""The process of one trial of the configurator. TensorFlow is imported only once its variables are set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.data.workers import Work


def make_trial(config: Mapping[str, Any], environ: Mapping[str, str], limit_bytes: int | None, is_whole: bool) -> Work:
    """The work of the process: from a plan to what a step took."""
    os.environ.update(environ)

    def measure(plan: Mapping[str, Any]) -> dict[str, Any]:
        from myxtts.devices.plan_json import load_plan
        from myxtts.training.tuning.trial import run_trial

        return run_trial(XTTSConfig(**config), load_plan(plan), limit_bytes, is_whole=is_whole)

    return measure
