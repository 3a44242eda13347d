"""`myxtts` itself: what it imports, how it words and wraps what it says."""

import io
import os
import pty
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from myxtts.cli.main import format_help, make_parser
from myxtts.cli.parser import wrap_message
from myxtts.errors import CommandLineError
from tests.support.processes import ROOT, clean_environ, run_code

MESSAGE = (
    "myxtts train: error: two devices are needed, but --data-gpu and --model-gpu are both 0. Train with\n"
    "  myxtts train --config configs/some_configuration_with_a_long_name.yaml --mode single\n"
    "or add --rehearsal."
)


@pytest.fixture
def terminal():
    """A terminal of 50 columns: the stream that is written to, and its screen."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    with os.fdopen(ours, "rb", 0) as screen, os.fdopen(theirs, "w") as stream:
        yield SimpleNamespace(stream=stream, screen=screen)


def test_a_terminal_gets_whole_words_and_whole_commands(terminal):
    assert wrap_message(MESSAGE, terminal.stream).split("\n") == [
        "myxtts train: error: two devices are needed, but",
        "--data-gpu and --model-gpu are both 0. Train with",
        "  myxtts train --config configs/some_configuration_with_a_long_name.yaml --mode single",
        "or add --rehearsal.",
    ]
    assert wrap_message("one\n\ntwo", terminal.stream) == "one\n\ntwo"
    # A flag is not broken at its hyphens, though half of it would fit.
    assert wrap_message("x" * 40 + " --data-gpu", terminal.stream) == "x" * 40 + "\n--data-gpu"
    assert (
        wrap_message("x" * 40 + " `myxtts train --resume`", terminal.stream) == "x" * 40 + "\n`myxtts train --resume`"
    )


def test_every_command_takes_rehearsal_and_its_help_loads_no_tensorflow():
    code = """
import contextlib, io
from myxtts.cli.main import COMMANDS, main
said = {}
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([command, "--rehearsal", "--help"])
    said[command] = out.getvalue()
report([said, sorted({'tensorflow', 'numpy', 'uvicorn', 'starlette'} & set(sys.modules))])
"""
    said, loaded = run_code(code)
    assert loaded == []
    assert [command for command, text in said.items() if "\n  --rehearsal" not in text] == []
    for command in ("synthesize", "serve"):
        assert "consent" in " ".join(said[command].split())


def test_a_file_a_pipe_and_a_terminal_too_narrow_get_a_message_as_it_is(terminal):
    assert wrap_message(MESSAGE, io.StringIO()) == MESSAGE
    termios.tcsetwinsize(terminal.stream.fileno(), (24, 20))
    assert wrap_message(MESSAGE, terminal.stream) == MESSAGE


def test_errors_are_wrapped(terminal):
    words = [sys.executable, "-m", "myxtts.cli.main", "nothing"]
    assert subprocess.run(words, stderr=terminal.stream, cwd=ROOT, env=clean_environ()).returncode == 2
    lines = terminal.screen.read(10_000).decode().splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 50


def test_the_overview_fits_eighty_columns():
    assert max(map(len, format_help().splitlines())) <= 80


@pytest.mark.parametrize(("words", "missing"), [("import", "MODEL.pth; --out"), ("export", "DIR; --out")])
def test_what_stands_in_front_of_the_flags_is_no_part_of_the_command(words, missing):
    parser = make_parser(words, f"myxtts {words}")
    with pytest.raises(CommandLineError) as caught:
        parser.parse_all([])
    assert str(caught.value) == f"Not given, but needed: {missing}. `myxtts {words} --help` lists all flags."
    assert parser.format_usage() == f"usage: myxtts {words} {missing.partition(';')[0]} [flags]\n"


def test_ctrl_c_is_answered_almost_from_the_start():
    """What is imported before the guard stands is what Ctrl-C meets without one."""
    found = run_code(
        "import myxtts.cli.main; report([name for name in ('pydantic', 'argparse', 'yaml') if name in sys.modules])"
    )
    assert found == []
