"""The errors of the feature cache."""

from myxtts.errors import MachineError, UserError


class CacheFolderError(MachineError):
    """The folder of a cache cannot be made or read."""


class CacheKeyError(UserError):
    """A folder of the cache does not hold what its name says."""


class CacheInUseError(UserError):
    """Features that are to be removed are in use by a running process."""
