"""What can go wrong when speech is judged."""

from __future__ import annotations

from myxtts.errors import MachineError, UserError


class JudgeRequestError(UserError):
    """A judge that is not known, not installed, or cannot be called as it was asked for."""


class JudgeFailedError(MachineError):
    """A judge gave no answer, or none that can be used."""


class NothingEvaluatedError(MachineError):
    """Not one sentence could be spoken."""


class NothingToEvaluateError(UserError):
    """No sentence is left to be spoken."""
