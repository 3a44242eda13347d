"""The command line: a parser whose errors are one clear message, raised like every other error of ours, and lines that fit."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
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
        """Raises what argparse says, in words of ours where its own are those of Python."""
        # It speaks so when a value follows a flag that takes none.
        if needless := re.fullmatch(r"argument (\S+): ignored explicit argument .*", message):
            names = needless[1].split("/")
            given = next((name for name in names if any(word.startswith(f"{name}=") for word in self._words)), names[0])
            message = f"{given} takes no value"
        elif odd := re.fullmatch(r"argument (\S+): invalid (int|float) value: (.*)", message, re.DOTALL):
            message = f"{odd[1]} must be {_NUMBERS[odd[2]]}, but is {odd[3]}"
        raise CommandLineError(f"{message[:1].upper()}{message[1:]}. {self._point_to_help()}")

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
