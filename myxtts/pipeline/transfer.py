"""A prepared batch onto the model device: copies, and nothing else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.pipeline.batch import Batch, Span
from myxtts.utils.commons import get_device_context


def place_batch(batch: Batch, device: str, began_s: float | None = None) -> Batch:
    """The batch with its tensors on a device. Nothing of it shows the memory of the arrays any more.

    Args:
        began_s: when the transfer began, by `time.perf_counter`; now unless given.
    """
    began_s = time.perf_counter() if began_s is None else began_s
    with get_device_context(device):
        tensors = {name: _place(array) for name, array in batch.tensors.items()}
    spans = batch.info.spans._replace(transfer=Span(began_s, time.perf_counter()))
    return Batch(tensors, replace(batch.info, spans=spans))


def _place(array: Any) -> Any:
    # Out of a slot only by `tf.constant`, which copies. `tf.convert_to_tensor`, `tf.expand_dims`, `tf.squeeze`, dlpack,
    # `numpy_function` and `from_generator` may go on showing the slot's memory, which the next batch overwrites.
    return tf.constant(array) if isinstance(array, np.ndarray) else tf.identity(array)
