"""Files that commands write where the user says."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

from myxtts.errors import CommandLineError

_IN_PLACE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""A folder that takes no new file, or a file that is mounted alone, as into a container: it may be written to even so."""


def check_writable(*paths: Path | None) -> None:
    """Raises `CommandLineError` for a place that cannot be written, before time is spent on what should go there.

    What is there stays as it is; what was not there is not there afterwards. None is a file that is not asked for.
    """
    for path in paths:
        if path is not None:
            _try_place(path)


def _try_place(path: Path) -> None:
    try:
        if not path.exists():
            part = _name_part(_find_target(path))
            part.touch()
            part.unlink()
        # Not a pipe, where it would wait for a reader.
        elif path.is_file() or path.is_dir():
            os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        raise _explain(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all; a place that cannot be written is an error that names it.

    Where nothing can take the place of what is there, it is written in place.
    """
    content = text.encode("utf-8", "surrogateescape")
    try:
        # A device, a pipe or a folder is no file.
        if path.is_file() or not path.exists():
            _replace_file(_find_target(path), content)
        else:
            path.write_bytes(content)
    except OSError as error:
        raise _explain(path, error) from None


def _replace_file(path: Path, content: bytes) -> None:
    part = _name_part(path)
    try:
        part.write_bytes(content)
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        if error.errno not in _IN_PLACE_ERRORS or not path.exists():
            raise
        path.write_bytes(content)
    finally:
        # A read-only file system refuses this even where there is nothing to remove.
        with contextlib.suppress(OSError):
            part.unlink()


def _find_target(path: Path) -> Path:
    """Where a link leads, which stays a link."""
    return Path(os.path.realpath(path))


def _name_part(path: Path) -> Path:
    # Of its own for each writer, and short: a name may be as long as the file system takes.
    return path.with_name(f".part-{secrets.token_hex(8)}")


def _explain(path: Path, error: OSError) -> CommandLineError:
    return CommandLineError(f"{path} cannot be written: {error.strerror}. Give a file in a folder that exists.")
