"""Text as what shows it can bear it: at the width of a terminal or in 80 columns, and without sequences that steer it."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any, TextIO

from myxtts.utils.commons import escape_controls

HELP_COLUMNS = 80
FEWEST_COLUMNS = 40
"""Narrower than this a message is a column of single words; the terminal breaks it better."""

_COMMAND = re.compile(r"`[^`\n]*`")
_BOUND = "\0"
"""For a space at which no line is broken: in no message, and no white space to `textwrap`."""


class PlainStream:
    """Standard output or error, to which only text is written.

    Names in files of others (clips, speakers, tensors, paths) reach the terminal from everywhere, and may hold the sequences
    that move its cursor, set its title or answer in its user's name. Here, on the way out, they become readable.

    Args:
        unescaped: the stream itself, for those who draw.
    """

    def __init__(self, unescaped: TextIO):
        self.unescaped = unescaped

    def write(self, text: str) -> int:
        self.unescaped.write(escape_controls(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def wrap_message(text: str, stream: TextIO) -> str:
    """A message as it is to be written to a stream: broken between words in a terminal, unchanged in a file or a pipe.

    Indented lines are commands to paste, and stay whole.
    """
    columns = _find_columns(stream)
    if columns is None or columns < FEWEST_COLUMNS:
        return text
    return "\n".join(line if line[:1].isspace() else _wrap(line, columns) for line in text.split("\n"))


def wrap_table(rows: Mapping[str, str]) -> list[str]:
    """Lines of names, each with its text beside it."""
    width = max(map(len, rows))
    lines: list[str] = []
    for name, text in rows.items():
        lines += textwrap.wrap(
            text, HELP_COLUMNS, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4)
        )
    return lines


def _find_columns(stream: TextIO) -> int | None:
    """The width of the terminal that a stream is; None where it is none, or does not say."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None


def _wrap(line: str, columns: int) -> str:
    # Flags, paths and commands in backticks stay whole: they are copied.
    bound = _COMMAND.sub(lambda found: found[0].replace(" ", _BOUND), line)
    wrapped = textwrap.wrap(bound, columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapped).replace(_BOUND, " ") or line
