"""`myxtts` itself: what it imports, and how it words what it says."""

import pytest

from myxtts.cli.main import make_parser
from myxtts.errors import CommandLineError
from tests.support.processes import run_code


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


@pytest.mark.parametrize(("words", "missing"), [("import", "MODEL.pth, --out"), ("export", "DIR, --out")])
def test_what_stands_in_front_of_the_flags_is_no_part_of_the_command(words, missing):
    parser = make_parser(words, f"myxtts {words}")
    with pytest.raises(CommandLineError) as caught:
        parser.parse_all([])
    assert f"arguments are required: {missing}. `myxtts {words} --help`" in str(caught.value)
    assert parser.format_usage() == f"usage: myxtts {words} {missing.partition(',')[0]} [flags]\n"


def test_ctrl_c_is_answered_almost_from_the_start():
    """What is imported before the guard stands is what Ctrl-C meets without one."""
    code = "import myxtts.cli.main; report(sorted({'pydantic', 'argparse', 'yaml'} & set(sys.modules)))"
    assert run_code(code) == []
