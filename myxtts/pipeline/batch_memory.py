"""What the process that made a batch held of memory then: it carries that with it, so that a leak shows where it is."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.pipeline.process_memory import read_private_bytes

MEMORY = "memory_3"
_UNKNOWN = -1


class BatchMemory(NamedTuple):
    """Memory at the moment a batch was made; None is unknown."""

    pid: int
    """Of the process that made it."""
    host_bytes: int | None
    device_bytes: int | None
    """In TensorFlow's pool on the device that prepares."""


def read_batch_memory(device_bytes: int | None) -> BatchMemory:
    """The memory of this process, which prepares on a device that holds so much."""
    return BatchMemory(os.getpid(), read_private_bytes(os.getpid()), device_bytes)


def dump_memory(memory: BatchMemory) -> NDArray[np.int64]:
    """The memory as `memory_3`."""
    return np.array([_UNKNOWN if value is None else value for value in memory], np.int64)


def parse_memory(memory_3: NDArray[np.int64]) -> BatchMemory:
    """The memory in `memory_3`, which may be a view of a slot."""
    pid, host, device = (None if value == _UNKNOWN else value for value in memory_3.tolist())
    assert pid is not None
    return BatchMemory(pid, host, device)
