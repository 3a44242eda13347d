"""The errors of this room."""

from myxtts.errors import MachineError, UserError


class MetadataError(UserError):
    """A corpus's metadata cannot be found or read."""


class DroppedClipsError(UserError):
    """Clips had to be set aside, and the user asked for that to be an error."""


class NothingToTrainOnError(UserError):
    """No clip of a corpus can be used."""


class BatchPlanError(UserError):
    """The batches asked for cannot be made from these clips."""


class ResumeError(UserError):
    """A saved position belongs to another corpus or to other batch settings."""


class IndexFolderError(MachineError):
    """There is no folder to remember a scan in."""


class WorkerError(MachineError):
    """A worker process failed in a way that is not a property of the file it read."""


class TooManyFailuresError(MachineError):
    """Too many clips that a scan found usable cannot be read any more."""


class SnapshotError(MachineError):
    """What a run reads was not written down, or cannot be read back."""
