"""The errors of this room."""

from __future__ import annotations

import os
from pathlib import Path
from signal import Signals

from myxtts.errors import MachineError, MyXTTSError, UserError


class RunFolderError(UserError):
    """The folder of the run cannot be used as it is."""


class RunInUseError(RunFolderError):
    """Another process trains in the folder."""


class NoRunError(RunFolderError):
    """There is no run to resume."""


class RunChangedError(RunFolderError):
    """The settings with these dotted keys would change the result of the run that is to go on."""

    def __init__(self, message: str, keys: tuple[str, ...]):
        self.keys = keys
        super().__init__(message)


class RunFinishedError(MyXTTSError):
    """The run in a folder is finished, with so many updates, and nothing more was asked of it. Not a failure: a job that is
    started again ends well."""

    exit_code = 0

    def __init__(self, message: str, folder: Path, step: int):
        self.folder = folder
        self.step = step
        super().__init__(message)


class RunStoppedError(MyXTTSError):
    """A signal asked for an end while no update was being made. Not a failure: nothing is lost. Without a command where
    nothing was trained that could be resumed."""

    def __init__(self, message: str, signal: Signals, resume_command: str | None):
        self.signal = signal
        self.resume_command = resume_command
        self.exit_code = choose_exit_code(signal)
        super().__init__(message)


def choose_exit_code(signal: Signals | None, *, is_worker: bool = False) -> int:
    """The exit code of a run that was asked to stop and did: who sends SIGTERM wants that, who presses Ctrl-C breaks it off."""
    if signal != Signals.SIGTERM:
        return 128 + Signals.SIGINT
    # Kubernetes would take 0 from a pod that has to move for a run that is done, and never start it again.
    return os.EX_TEMPFAIL if is_worker else 0


class GradientMemoryError(MachineError):
    """Out of memory while gradients were computed, in the smallest parts that are allowed. Nothing was changed."""


class UpdateMemoryError(MachineError):
    """Out of memory inside an update: the model in memory is of no use any more."""


class ValidationMemoryError(MachineError):
    """Out of memory while a validation batch was evaluated, in the smallest parts that are allowed. Nothing was changed."""


class PlacementError(MachineError):
    """Something is not on the device the plan says."""


class NotFiniteError(MachineError):
    """A loss or gradient was not finite; the update was not made."""


class CodecMissingError(UserError):
    """A GPT cannot be trained without a codec, and there is none."""


class StartingPointError(UserError):
    """The model to start from does not fit what was asked for, or is none."""


class NotTrainingError(UserError):
    """What a training makes was asked for before there was one."""


class ProfileError(UserError):
    """A run that cannot be profiled as asked."""


class CodePreparationError(UserError):
    """Codes that no run with these settings would read."""
