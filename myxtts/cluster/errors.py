"""Errors of a run with several trainers."""

from __future__ import annotations

from myxtts.errors import MachineError, UserError


class ClusterError(UserError):
    """The cluster that was described cannot be used as it is."""


class RendezvousError(MachineError):
    """Not all workers of a cluster have met in time."""


class WorkerLostError(MachineError):
    """Another worker of the cluster has died, failed or fallen silent, so the run cannot go on."""


class OutOfStepError(MachineError):
    """Workers of a cluster are not at the same place of the run."""


class FrameError(MachineError):
    """What came over a connection is no message of ours."""
