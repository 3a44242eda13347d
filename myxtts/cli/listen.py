"""`myxtts listen`: the checkpoints of a run on one page, to compare them by ear."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Put what each validation of a run said on one page, with the loss it had: checkpoints by ear.",
    )
    parser.usage = f"{prog} DIR [flags]"
    parser.add_argument("run", metavar="DIR", type=Path, help="the --checkpoint-dir of a run")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the page to write (default: listen.html in the run)")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    from myxtts.reports.pages import LISTENING_PAGE, SAMPLES_FOLDER, write_listening_page

    if not arguments.run.is_dir():
        what = "is a file" if arguments.run.exists() else "does not exist"
        raise CommandLineError(f"{arguments.run} {what}. Give the folder of a run: what its --checkpoint-dir was.")
    page = arguments.out or arguments.run / LISTENING_PAGE
    if page.is_dir():
        raise CommandLineError(
            f"--out must be a file, but {page} is a folder. Give {page / LISTENING_PAGE}, for example."
        )
    sounds = write_listening_page(arguments.run, page)
    if not sounds:
        raise CommandLineError(
            f"{arguments.run} must be the folder of a run that has validated at least once, but there is no "
            f"{SAMPLES_FOLDER}/step-....wav in it. Give the folder that the run's --checkpoint-dir was, or let the run go on to "
            "its first validation."
        )
    print(f"Written {page} (sounds: {sounds})")
    return 0
