"""Proof that training happens where the plan says: soft placement would move work elsewhere without a word."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.devices import runtime
from myxtts.devices.environment import ONEDNN
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import read_execution
from myxtts.training.errors import PlacementError
from myxtts.training.objectives import Tensors


def check_variables(variables: Iterable[tuple[str, Any]], device: str) -> None:
    """Raises `PlacementError` for the first variable that is not on the device."""
    for name, variable in variables:
        _check(f"variable {name}", variable, device)


def check_batch(batch: Tensors, device: str) -> None:
    """Raises `PlacementError` for the first float tensor of a batch that is not on the device.

    Not for whole numbers: TensorFlow keeps int32 in host memory even when a GPU computes with it.
    """
    for name, tensor in batch.items():
        if tensor.dtype.is_floating:
            _check(f"input {name}", tensor, device)


def check_result(result: tf.Tensor, device: str) -> None:
    """Raises `PlacementError` when a step's result is not on the device."""
    _check("the step's result", result, device)


def _check(what: str, tensor: Any, device: str) -> None:
    # "/GPU:1" of the plan is "/job:localhost/replica:0/task:0/device:GPU:1" to TensorFlow.
    if not tensor.device.endswith(f"device:{device.removeprefix('/')}"):
        raise PlacementError(
            f"{what[0].upper()}{what[1:]} must be on {device}, but is on {tensor.device or 'no device'}. "
            "This is a fault of MyXTTS: please report it with the command and `myxtts devices`."
        )


DETERMINISTIC_THREADS = 2
"""Of both roles in every mode: the number of threads decides about last bits."""


def apply_devices(config: XTTSConfig, plan: DevicePlan) -> None:
    """Puts the plan into force in this process, with equal threads and determinism where the run must be bit-exact."""
    if config.training.deterministic:
        runtime.set_thread_pools(DETERMINISTIC_THREADS, DETERMINISTIC_THREADS)
        runtime.enable_determinism()
    runtime.apply_plan(plan)


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
