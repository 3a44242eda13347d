"""The errors of the feature cache."""

from myxtts.errors import MachineError, UserError


class CacheFolderError(MachineError):
    """The folder of a cache cannot be made or read."""


class CacheKeyError(UserError):
    """A folder of the cache does not hold what its name says."""
