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


class ServiceAddressError(UserError):
    """An address at which a part of a tf.data service is to listen or to be found cannot be used."""


class ServiceFormatError(UserError):
    """A corpus has clips that a tf.data service cannot read."""


class ServiceUnavailableError(MachineError):
    """A tf.data service does not answer, or has nobody who reads."""


class UnseenFilesError(MachineError):
    """A data worker does not see the files that the trainer sees."""


class PreparedCorpusError(UserError):
    """A copy of a corpus cannot be written."""
