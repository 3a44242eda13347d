"""A prepared batch onto the model device: copies, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.data.replacements import Failure
from myxtts.pipeline.batch_facts import CLIPS, FACTS, HOST_ARRAYS, REPLACED, BatchFacts, parse_failures
from myxtts.pipeline.batch_memory import MEMORY, BatchMemory, parse_memory
from myxtts.pipeline.batch_spans import SPANS, BatchSpans, Span, parse_spans
from myxtts.utils.commons import get_device_context


class DeviceBatch(NamedTuple):
    """A batch on the model device."""

    facts: BatchFacts
    tensors: dict[str, Any]
    replaced: tuple[Failure, ...]
    """Clips of its rows that failed and were replaced, for the journal of the run."""
    clips_B: NDArray[np.int32]
    """Clip numbers by row; `EMPTY_ROW` where there is none."""
    spans: BatchSpans
    memory: BatchMemory
    totals_2: NDArray[np.float32]
    """As among the tensors, on the host; empty where there are none."""


def place_batch(arrays: Mapping[str, Any], device: str, began_s: float | None = None) -> DeviceBatch:
    """The batch with its tensors on a device. Nothing of it shows the memory of the arrays any more.

    Args:
        began_s: when the transfer began, by `time.perf_counter`; now unless given.
    """
    began_s = time.perf_counter() if began_s is None else began_s
    with get_device_context(device):
        tensors = {name: _place(array) for name, array in arrays.items() if name not in HOST_ARRAYS}
    return DeviceBatch(
        facts=BatchFacts.parse(arrays[FACTS]),
        tensors=tensors,
        replaced=parse_failures(arrays[REPLACED]),
        clips_B=np.array(arrays[CLIPS]),
        spans=BatchSpans(*parse_spans(arrays[SPANS]), Span(began_s, time.perf_counter())),
        memory=parse_memory(arrays[MEMORY]),
        totals_2=np.array(arrays.get("totals_2", ()), np.float32),
    )


def _place(array: Any) -> Any:
    # Out of a slot only by `tf.constant`, which copies; most other ways would go on showing the slot's memory.
    return tf.constant(array) if isinstance(array, np.ndarray) else tf.identity(array)
