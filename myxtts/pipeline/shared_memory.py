"""Anonymous memory that a child process can share: it has no name, so nothing is left behind when all are gone."""

from __future__ import annotations

import fcntl
import os

from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.pipeline.errors import RingMemoryError
from myxtts.pipeline.units import format_bytes

_MOST_OF_FREE = 0.8
"""The rest is for what the run has yet to allocate."""


def reserve_shared_memory(size_bytes: int) -> int:
    """A file descriptor of memory that is really there and can neither shrink nor grow. The caller closes it."""
    free_bytes = read_free_memory_bytes()
    # Checked beforehand: the kernel does not refuse a reservation that is too large, it kills processes to fulfil it.
    if size_bytes > free_bytes * _MOST_OF_FREE:
        raise RingMemoryError(
            f"{format_bytes(size_bytes)} of shared host memory are needed, but only {format_bytes(free_bytes)} are free, of "
            f"which at most {_MOST_OF_FREE:.0%} are taken. Lower --batch-size, or free memory."
        )
    descriptor = os.memfd_create("myxtts-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Without this a page is sought when it is first written, and where there is none the writer dies of SIGBUS.
        os.posix_fallocate(descriptor, 0, size_bytes)
        # A child gone wild could otherwise cut the memory off, and the trainer would die of SIGBUS while reading it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(descriptor)
        raise RingMemoryError(
            f"{format_bytes(size_bytes)} of shared host memory cannot be reserved: {os.strerror(error.errno or 0)}. "
            "Lower --batch-size, or raise the limits of this process (`ulimit -a`, or those of its container)."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
