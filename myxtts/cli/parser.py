"""The command line: a parser whose errors are one clear message, raised like every other error of ours."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from myxtts.config.section import nearest_name
from myxtts.errors import CommandLineError


class Parser(argparse.ArgumentParser):
    """`argparse` without abbreviations, whose mistakes are `CommandLineError`s that know the nearest flag."""

    def __init__(self, prog: str, description: str):
        # Abbreviations would turn a new flag into a breaking change for whoever used its beginning.
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags]",
            description=description,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        # argparse speaks of an "ignored explicit argument" when a value follows a flag that takes none.
        needless = re.fullmatch(r"argument (\S+): ignored explicit argument .*", message)
        text = f"{needless[1]} takes no value" if needless else message[:1].upper() + message[1:]
        raise CommandLineError(f"{text}. {self._point_to_help()}")

    def _point_to_help(self) -> str:
        command = f"python {self.prog}" if self.prog.endswith(".py") else self.prog
        return f"`{command} --help` lists all flags."

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words; anything left over is an error with the nearest flag."""
        namespace, unknown = self.parse_known_args(words)
        if unknown:
            self._refuse(unknown)
        return namespace

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        word = unknown[0].partition("=")[0]
        if not word.strip("-") or not word.startswith("-"):
            raise CommandLineError(f"{self.prog} takes no argument {word!r}. {self._point_to_help()}")
        near = nearest_name(word, [flag for action in self._actions for flag in action.option_strings])
        hint = f"Did you mean {near}?" if near else self._point_to_help()
        raise CommandLineError(f"{self.prog} has no flag {word}. {hint}")


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32)


def spell_command(prog: str, words: Sequence[str]) -> tuple[str, ...]:
    """The words that started a program, as they can be pasted."""
    return (*(["python"] if prog.endswith(".py") else []), *prog.split(), *words)
