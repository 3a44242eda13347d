"""Files that commands write where the user says."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from myxtts.errors import CommandLineError
from myxtts.files import WriteError, open_file_atomically

_IN_PLACE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""A folder that takes no new file, or a file that is mounted alone, as into a container: it may be written to even so."""


def check_writable(*paths: Path | None) -> None:
    """Raises `CommandLineError` for a place that cannot be written, before time is spent on what should go there.

    What is there stays as it is; what was not there is not there afterwards. None is a file that is not asked for.
    """
    for path in paths:
        try:
            if path is not None and not path.exists():
                tempfile.TemporaryDirectory(prefix=".myxtts-", dir=_find_folder(path)).cleanup()
            # Not a pipe, where it would wait for a reader.
            elif path is not None and (path.is_file() or path.is_dir()):
                os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            raise _explain(path, error.strerror) from None


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all; a place that cannot be written is an error that names it.

    Where nothing can take the place of what is there, it is written in place.
    """
    content = text.encode("utf-8", "surrogateescape")
    try:
        # A device, a pipe or a folder is no file.
        if (path.is_file() or not path.exists()) and _replace_file(path, content):
            return
        path.write_bytes(content)
    except OSError as error:
        raise _explain(path, error.strerror) from None


def _replace_file(path: Path, content: bytes) -> bool:
    """Whether the file could be put in place; False where it may be written to as it is."""
    # Not made: the folder may be mistyped.
    os.stat(f"{_find_folder(path)}/.")
    try:
        with open_file_atomically(path) as file:
            file.write(content)
    except WriteError as error:
        if getattr(error.__cause__, "errno", None) in _IN_PLACE_ERRORS and path.exists():
            return False
        raise _explain(path, error.reason) from None
    return True


def _find_folder(path: Path) -> Path:
    """Where the file lies that a link leads to."""
    return Path(os.path.realpath(path)).parent


def _explain(path: Path | None, reason: str | None) -> CommandLineError:
    return CommandLineError(f"{path} cannot be written: {reason}. Give a file in a folder that exists.")
