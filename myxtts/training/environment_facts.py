"""What the bits of a run's losses depend on besides its settings, clips and seed."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.devices.environment import ONEDNN
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import read_execution


def describe_environment(plan: DevicePlan, workers: int = 1) -> dict[str, Any]:
    """The facts, of kinds that JSON knows.

    Args:
        workers: that share every batch: they make the same sums in another order.
    """
    execution = read_execution()
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "device_kind": plan.model.device[1:4],
        "intra_op_threads": execution.intra_op,
        "is_deterministic": execution.is_deterministic,
        "onednn": os.environ.get(ONEDNN, "default"),
        # Only where there are several: a run that was made before they could be must not differ from itself.
        **({"workers": workers} if workers > 1 else {}),
    }
