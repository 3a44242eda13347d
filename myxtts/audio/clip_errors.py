"""Why a clip cannot be used."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from myxtts.errors import UserError

CONVERT = "Convert it: ffmpeg -i INPUT OUTPUT.flac"
COPY = "Copy it anew from its source, or take it out of the metadata."
REPLACE = "Replace the file, or take it out of the metadata."


class ClipProblem(StrEnum):
    """The reasons a clip is set aside for, as drop reports name them."""

    MISSING = "missing"
    """There is no such file."""
    UNREADABLE = "unreadable"
    """It may not be opened, the disk gives errors, or something else than a file stands there."""
    EMPTY = "empty"
    """A file without a single sample."""
    UNSUPPORTED = "unsupported"
    """Sound, but in a form that cannot be read here; converting the file helps."""
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    """The file ends before the sound its header promises."""
    NAN = "nan"
    """Samples that are not numbers, or infinite."""
    SILENT = "silent"
    TOO_LONG = "too_long"


class ClipError(UserError):
    """A clip that cannot be used.

    Args:
        path: the file.
        problem: the reason, for counting.
        text: what is wrong with this file, with the value found, and what to do.
    """

    def __init__(self, path: Path, problem: ClipProblem, text: str):
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {text}")
