"""`myxtts bug-report [RUN]`: one file to attach to a bug report. Needs neither a run nor TensorFlow."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.files import write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError

FILE_NAME = "myxtts-bug-report.md"


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Write one file to attach to a bug report: hardware, software, settings, the last error, log and figures. "
        "Audio, texts, secrets, home folder and user name are left out. Nothing is sent anywhere.",
    )
    parser.usage = f"{prog} [RUN] [flags]"
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="the folder of the run it is about, if it is about one"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(FILE_NAME), metavar="FILE", help=f"where to write it (default: {FILE_NAME})"
    )
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    if arguments.run is not None and not arguments.run.is_dir():
        raise CommandLineError(
            f"{arguments.run}: is no folder. Give the folder of a run (its --checkpoint-dir), or nothing to report on this machine."
        )
    # Not imported above: --help needs none of it.
    from myxtts.monitoring.redaction import LEFT_OUT
    from myxtts.tuning.machine_report import make_bug_report

    text = make_bug_report(arguments.run, os.environ)
    write_text(arguments.out, text)
    print(f"Written {arguments.out} ({len(text.encode()) / 1000:.0f} kB). Nothing was sent anywhere.\n")
    print(textwrap.fill(LEFT_OUT, 80))
    return 0
