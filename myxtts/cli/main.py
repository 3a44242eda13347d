"""`myxtts COMMAND`: finds the command, runs it, and turns errors into one message and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from myxtts import __version__
from myxtts.errors import CommandLineError, MyXTTSError

if TYPE_CHECKING:
    from myxtts.cli.parser import Parser

# Little is imported here: what Ctrl-C hits before `_guard` stands ends in a traceback.

COMMANDS: Mapping[str, str] = {
    "train": "train a model, or show the configuration and the device plan of a run",
    "synthesize": "speak a text in the voice of a recording, to a file or as a stream",
    "serve": "speak over HTTP as the OpenAI API does, with a page to type a text and listen",
    "studio": "a page in the browser from recordings to a voice: mend transcripts, train, compare, speak",
    "evaluate": "measure how well a model speaks, against the recordings, with a page to listen to",
    "corpus": "make a corpus of long recordings: cut, written down, judged; or judge one that exists",
    "data": "look at a corpus: durations, speakers, what is set aside and why",
    "data-prepare": "make the codes of a corpus before a run, so that the run finds them",
    "vocabulary": "grow a model's vocabulary by a language, with advice on how many tokens",
    "profile": "measure where the time of a training step goes, and name the stage that limits it",
    "diagnose": "find out why the GPU is not busy: software, settings, corpus, speed",
    "configure": "measure this machine with your run, and write settings that suit it",
    "devices": "list the GPUs of this machine, their memory and how they are connected",
    "selfcheck": "try on your cards what depends on real GPUs, and write a report to post",
    "import": "convert a Coqui XTTS checkpoint to a model directory",
    "export": "write a model's weights for others: safetensors, or the files Coqui's tools load",
}
"""Command -> its line of help."""

MODULES: Mapping[str, str] = {"import": "models", "export": "models", "data-prepare": "data"}
"""The module of a command that is not called like it; its `add_flags` and `run` have the command's name behind theirs."""

FAULT = (
    "This should not happen: it is a fault of MyXTTS. Please report it with the file that\n"
    "`myxtts diagnose --skip-speed-test --json FILE` writes, and the run.log of the run, if there is one."
)

_FILE_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
"""What is wrong with a path or a disk wherever it is met, also where it was only asked whether a file is there."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs `myxtts` with these words (the command line's unless given) and returns the exit code."""
    words = sys.argv[1:] if words is None else words
    if words and not words[0].startswith("-"):
        return run_command(words[0], words[1:], f"myxtts {words[0]}")
    return _guard("myxtts", lambda: _answer(words))


def run_command(name: str, words: Sequence[str], prog: str) -> int:
    """Runs one command; errors raised on purpose become a message on standard error, never a traceback."""

    def run() -> int:
        parser = make_parser(name, prog)
        return int(_find(name, "run")(parser.parse_all(words)))

    return _guard(prog, run)


def make_parser(name: str, prog: str) -> Parser:
    """The parser of a command. Its own flags need neither TensorFlow nor numpy."""
    if name not in COMMANDS:
        from myxtts.config.settings import nearest_name

        near = nearest_name(name, COMMANDS)
        hint = f"Did you mean `myxtts {near}`?" if near else f"Commands: {', '.join(COMMANDS)}."
        raise CommandLineError(f"There is no command {name!r}. {hint}")
    from myxtts.cli.parser import Parser

    parser = Parser(prog)
    _find(name, "add_flags")(parser)
    places = [str(action.metavar) for action in parser._get_positional_actions()]
    parser.usage = parser.usage or " ".join([prog, *places, "[flags]"])
    return parser


def _find(name: str, part: str) -> Callable[..., Any]:
    """`add_flags(parser)` or `run(arguments)` of a command."""
    module = importlib.import_module(f"myxtts.cli.{MODULES.get(name, name)}")
    function: Callable[..., Any] = getattr(module, f"{part}_{name.replace('-', '_')}" if name in MODULES else part)
    return function


def _answer(words: Sequence[str]) -> int:
    """What `myxtts` itself says, without a command."""
    if not words or words[0] in ("-h", "--help"):
        print(format_help())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"myxtts {__version__}")
        return 0
    raise CommandLineError(
        f"There is no flag {words[0]} here: flags stand behind a command, as in `myxtts train {words[0]}`."
    )


def _guard(prog: str, run: Callable[[], int]) -> int:
    try:
        from myxtts.cli.parser import PlainStream

        # What the terminal cannot show, or would be steered by, is escaped from now on: a corpus may have any name.
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            if stream is not None and not isinstance(stream, PlainStream):
                setattr(sys, name, PlainStream(stream))
        code = run()
        # Here, where a failure can still be told: the interpreter's own flush at exit cannot.
        sys.stdout.flush()
    except MyXTTSError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        return _report_os_error(prog, error)
    except Exception as error:
        # Printed below the traceback, which a fault of ours deserves.
        error.add_note(FAULT)
        raise
    return code


def _report_os_error(prog: str, error: OSError) -> int:
    """Ends quietly when the reader of our output has gone, as in `--help | head`; any other failure is told."""
    is_pipe = isinstance(error, BrokenPipeError)
    if error.errno in _FILE_ERRORS and error.filename is not None:
        name = os.fsdecode(error.filename)
        print(f"{prog}: error: {name}: {error.strerror}. Give a path that can be used.", file=sys.stderr)
        return CommandLineError.exit_code
    if not is_pipe and error.errno != errno.ENOSPC:
        error.add_note(FAULT)
        raise error
    # The interpreter flushes once more at exit and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if is_pipe:
        return 128 + signal.SIGPIPE
    print(f"{prog}: error: the output could not be written: {error.strerror}.", file=sys.stderr)
    return 1


def format_help() -> str:
    """The overview of commands."""
    from myxtts.units import wrap_titled

    width = max(map(len, COMMANDS)) + 4
    lines = [
        "usage: myxtts COMMAND [flags]",
        "",
        "Train and run XTTS on the devices you own: one prepares, one trains.",
        "",
        *(line for name, text in COMMANDS.items() for line in wrap_titled(f"  {name}", text, indent=width)),
        "",
        "`myxtts COMMAND --help` shows the flags of a command.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
