"""Proof that training happens where the plan says: soft placement would move work elsewhere without a word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

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
