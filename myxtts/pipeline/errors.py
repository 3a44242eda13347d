"""The errors of this room."""

from myxtts.errors import MachineError, UserError


class RingMemoryError(MachineError):
    """The shared memory of a ring cannot be had."""


class SlotTooSmallError(UserError):
    """A batch does not fit into a slot."""


class SlotContentError(UserError):
    """A batch holds something a slot cannot carry."""


class TaskError(UserError):
    """A producer's task cannot be loaded."""
