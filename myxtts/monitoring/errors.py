"""Exceptions of this room."""

from __future__ import annotations

from myxtts.errors import MachineError, UserError


class MetricsFileError(UserError):
    """A file that should hold the metrics of a run cannot be read as such."""


class MetricsWriteError(MachineError):
    """A row could not be written to the metrics file. What was there before is whole."""


class MemoryBillError(UserError):
    """What a run needs does not fit into the memory of a device."""


class NotARunError(UserError):
    """What should be the folder of a run is none."""
