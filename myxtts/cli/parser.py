"""The command line: a parser whose errors are one clear message, raised like every other error of ours, and lines that fit."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

from myxtts.config.settings import nearest_name
from myxtts.errors import CommandLineError
from myxtts.utils.commons import escape_controls

_NUMBERS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """`argparse` without abbreviations, whose mistakes are `CommandLineError`s that know the nearest flag.

    Every command takes `--rehearsal`. Indented lines of the description are commands, and stay whole.
    """

    def __init__(self, prog: str):
        # Abbreviations would turn a new flag into a breaking change for whoever used its beginning.
        super().__init__(
            prog=prog,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            # Where the settings of a run are taken, their --rehearsal is in the place of the one below.
            conflict_handler="resolve",
        )
        self.add_argument(
            "--rehearsal",
            action="store_true",
            help="use logical CPU devices, also where there are GPUs; taken everywhere, also where no device is used",
        )
        self._words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(f"{self._reword(message)}. {self._point_to_help()}")

    def _reword(self, message: str) -> str:
        """What argparse says, in words of ours where its own are those of Python."""
        # It speaks so when a value follows a flag that takes none.
        if needless := re.fullmatch(r"argument (\S+): ignored explicit argument .*", message):
            names = needless[1].split("/")
            given = next((name for name in names if any(word.startswith(f"{name}=") for word in self._words)), names[0])
            return f"{given} takes no value"
        if odd := re.fullmatch(r"argument (\S+): invalid (int|float) value: (.*)", message, re.DOTALL):
            return f"{odd[1]} must be {_NUMBERS[odd[2]]}, but is {odd[3]}"
        if missing := re.fullmatch(r"the following arguments are required: (.*)", message):
            return f"Not given, but needed: {'; '.join([*missing[1].split(', '), *self._list_open_choices()])}"
        if re.fullmatch(r"one of the arguments .* is required", message):
            return f"Not given, but needed: {'; '.join(self._list_open_choices())}"
        return message[:1].upper() + message[1:]

    def _list_open_choices(self) -> list[str]:
        """Of flags that exclude each other and of which one is needed, those where none was given."""
        given = {word.partition("=")[0] for word in self._words}
        choices = [
            [action.option_strings[0] for action in group._group_actions]
            for group in self._mutually_exclusive_groups
            if group.required
        ]
        return [" or ".join(flags) for flags in choices if given.isdisjoint(flags)]

    def _point_to_help(self) -> str:
        command = f"python {self.prog}" if self.prog.endswith(".py") else self.prog
        return f"`{command} --help` lists all flags."

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words, with these themselves and the `pasted` command; anything left over is an error with the nearest flag."""
        self._words = words
        namespace, unknown = self.parse_known_args(words)
        if unknown:
            self._refuse(unknown)
        namespace.words, namespace.pasted = words, spell_command(self.prog, words)
        return namespace

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        word = unknown[0].partition("=")[0]
        if not word.strip("-") or not word.startswith("-"):
            raise CommandLineError(f"The word {word!r} belongs to no flag. {self._point_to_help()}")
        near = nearest_name(word, [flag for action in self._actions for flag in action.option_strings])
        hint = f"Did you mean {near}?" if near else self._point_to_help()
        raise CommandLineError(f"There is no flag {word}. {hint}")


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (
            line if line[:1].isspace() else super(_HelpFormatter, self)._fill_text(line, width, indent)
            for line in text.split("\n")
        )
        return "\n".join(lines)


def spell_command(prog: str, words: Sequence[str]) -> tuple[str, ...]:
    """The words that started a program, as they can be pasted."""
    return (*(["python"] if prog.endswith(".py") else []), *prog.split(), *words)


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
