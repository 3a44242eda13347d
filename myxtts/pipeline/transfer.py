"""A prepared batch onto the model device: copies, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.data.replacements import Failure
from myxtts.pipeline.batch_facts import CLIPS, FACTS, HOST_ARRAYS, REPLACED, BatchFacts, parse_failures
from myxtts.utils.commons import get_device_context


class DeviceBatch(NamedTuple):
    """A batch on the model device."""

    facts: BatchFacts
    tensors: dict[str, Any]
    replaced: tuple[Failure, ...]
    """Clips of its rows that failed and were replaced, for the journal of the run."""
    clips_B: NDArray[np.int32]
    """Clip numbers by row; `EMPTY_ROW` where there is none."""


def place_batch(arrays: Mapping[str, Any], device: str) -> DeviceBatch:
    """The batch with its tensors on a device. Nothing of it shows the memory of the arrays any more."""
    with get_device_context(device):
        tensors = {name: _place(array) for name, array in arrays.items() if name not in HOST_ARRAYS}
    return DeviceBatch(
        facts=BatchFacts.parse(arrays[FACTS]),
        tensors=tensors,
        replaced=parse_failures(arrays[REPLACED]),
        clips_B=np.array(arrays[CLIPS]),
    )


def _place(array: Any) -> Any:
    # Out of a slot only by `tf.constant`, which copies; most other ways would go on showing the slot's memory.
    return tf.constant(array) if isinstance(array, np.ndarray) else tf.identity(array)
