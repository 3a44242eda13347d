"""Files that commands write where the user says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from myxtts.errors import CommandLineError


def check_writable(path: Path) -> None:
    """Raises `CommandLineError` for a place that cannot be written, before time is spent on what should go there.

    What is there stays as it is; what was not there is not there afterwards.
    """
    try:
        if _is_replaced(path):
            part = _name_part(_find_target(path))
            part.touch()
            part.unlink()
        # Not a pipe, where it would wait for a reader.
        if path.is_file() or path.is_dir():
            os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        raise _explain(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all; a place that cannot be written is an error that names it."""
    content = text.encode("utf-8", "surrogateescape")
    try:
        if _is_replaced(path):
            _replace_file(_find_target(path), content)
        else:
            path.write_bytes(content)
    except OSError as error:
        raise _explain(path, error) from None


def _is_replaced(path: Path) -> bool:
    """Whether a new file takes the place of what is there; a device, a pipe or a folder is no file."""
    return path.is_file() or not path.exists()


def _replace_file(path: Path, content: bytes) -> None:
    part = _name_part(path)
    try:
        part.write_bytes(content)
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _find_target(path: Path) -> Path:
    """Where a link leads, which stays a link."""
    return Path(os.path.realpath(path))


def _name_part(path: Path) -> Path:
    return path.with_name(f".part-{path.name}")


def _explain(path: Path, error: OSError) -> CommandLineError:
    return CommandLineError(f"{path} cannot be written: {error.strerror}. Give a file in a folder that exists.")
