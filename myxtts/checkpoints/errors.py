"""Errors of reading and writing model files. Each names the file, what is wrong with it, and a way out."""

from __future__ import annotations

from pathlib import Path

from myxtts.errors import UserError


class CheckpointError(UserError):
    """A model file or a checkpoint cannot be used as it is."""


class ModelFileError(CheckpointError):
    """A file is not the model file it should be: another format, cut short, damaged, or made to do harm.

    Args:
        path: the file.
        problem: what is wrong and what to do, as a sentence that follows the file's name.
    """

    def __init__(self, path: Path | str, problem: str):
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class DamagedFileError(ModelFileError):
    """Part of a sealed directory is missing, cut short, changed or unreadable on the disk: an older copy may do."""


class UnsafeModelFileError(ModelFileError):
    """A model file names a Python object that is not in the reader's closed list.

    Args:
        path: the file.
        global_name: the object's dotted name, as the file spells it.
    """

    def __init__(self, path: Path | str, global_name: str):
        self.global_name = global_name
        super().__init__(
            path,
            f"asks for the Python object {global_name!r}, which no model file needs. Nothing was executed. "
            "Get the file from its publisher; if it is your own, save only tensors, numbers and text in it.",
        )


class NoWholeCheckpointError(CheckpointError):
    """A folder had checkpoints, and none of them can be used any more."""
