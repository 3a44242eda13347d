"""The errors of this room."""

from myxtts.errors import MachineError, UserError


class WireError(MachineError):
    """A message between trainer and producer cannot be sent."""


class MessageTooLargeError(WireError):
    """A message is larger than the wire carries in one piece."""


class WireFullError(WireError):
    """The other side does not read its messages."""


class RingMemoryError(MachineError):
    """The shared memory of a ring cannot be had."""


class SlotTooSmallError(UserError):
    """A batch does not fit into a slot."""


class SlotContentError(UserError):
    """A batch holds something a slot cannot carry."""


class TaskError(UserError):
    """A producer's task cannot be loaded."""
