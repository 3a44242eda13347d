"""`myxtts COMMAND`: finds the command, runs it, and turns errors into one message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from myxtts import __version__
from myxtts.config.section import nearest_name
from myxtts.errors import CommandLineError, MyXTTSError

COMMANDS: Mapping[str, str] = {
    "train": "train a model, or show the configuration and the device plan of a run",
    "data": "look at a corpus: durations, speakers, what is set aside and why",
    "devices": "list the GPUs of this machine, their memory and how they are connected",
}
"""Command -> its line of help. Each is a module of this package with `run(words, prog)`."""


class Command(Protocol):
    """What every command module offers."""

    def run(self, words: Sequence[str], prog: str) -> int:
        """Runs the command on the words behind its name and returns the exit code."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs `myxtts` with these words (the command line's unless given) and returns the exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print(format_help())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"myxtts {__version__}")
        return 0
    return run_command(words[0], words[1:], f"myxtts {words[0]}")


def run_command(name: str, words: Sequence[str], prog: str) -> int:
    """Runs one command; errors raised on purpose become a message on standard error, never a traceback."""
    try:
        return _load_command(name).run(words, prog)
    except MyXTTSError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `--help | head`; the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def format_help() -> str:
    """The overview of commands."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: myxtts COMMAND [flags]",
        "",
        "Train and run XTTS on the devices you own: one prepares, one trains.",
        "",
        *(f"  {name:<{width}}  {help}" for name, help in COMMANDS.items()),
        "",
        "`myxtts COMMAND --help` shows the flags of a command.",
    ]
    return "\n".join(lines)


def _load_command(name: str) -> Command:
    if name not in COMMANDS:
        near = nearest_name(name, COMMANDS)
        hint = f"Did you mean `myxtts {near}`?" if near else f"Commands: {', '.join(COMMANDS)}."
        raise CommandLineError(f"There is no command {name!r}. {hint}")
    return importlib.import_module(f"myxtts.cli.{name}")


if __name__ == "__main__":
    sys.exit(main())
