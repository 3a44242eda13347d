"""Files that commands write where the user says."""

from __future__ import annotations

from pathlib import Path

from myxtts.errors import CommandLineError


def write_text(path: Path, text: str) -> None:
    """Writes a file; a place that cannot be written is an error that names it."""
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CommandLineError(
            f"{path} cannot be written: {error.strerror}. Give a file in a folder that exists."
        ) from None
