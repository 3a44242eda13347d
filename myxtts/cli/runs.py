"""`myxtts compare`, `listen` and `bug-report`: about runs that have trained."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.output import check_writable, write_asked, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def build_parser_compare(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Put runs side by side: losses at the same step, step times, throughput, memory, and the settings that differ. "
        "The better figure is marked where one is better. Runs that still train, or were killed, are compared as far as they "
        "came. Curves: tensorboard --logdir with the folder that the runs are in.",
    )
    parser.usage = f"{prog} RUN RUN [RUN ...] [flags]"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run (its --checkpoint-dir)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the tables as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures; unknown values are null")
    return parser


def run_compare(words: Sequence[str], prog: str) -> int:
    arguments = build_parser_compare(prog).parse_all(words)
    if len(arguments.runs) < 2:
        raise CommandLineError(
            f"Two runs or more are compared, but only {arguments.runs[0]} is given. As in: {prog} runs/one runs/two"
        )
    check_writable(arguments.html, arguments.json)
    # Not imported above: --help needs none of it.
    from myxtts.reports.compare import compare_runs, format_comparison, format_comparison_json, format_comparison_page

    comparison = compare_runs(arguments.runs)
    print(format_comparison(comparison))
    write_asked(arguments.html, "Page    ", lambda: format_comparison_page(comparison))
    write_asked(arguments.json, "Figures ", lambda: format_comparison_json(comparison) + "\n")
    return 0


def build_parser_listen(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Put what each validation of a run said on one page, with the loss it had: checkpoints by ear.",
    )
    parser.usage = f"{prog} DIR [flags]"
    parser.add_argument("run", metavar="DIR", type=Path, help="the --checkpoint-dir of a run")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the page to write (default: listen.html in the run)")
    return parser


def run_listen(words: Sequence[str], prog: str) -> int:
    arguments = build_parser_listen(prog).parse_all(words)
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


FILE_NAME = "myxtts-bug-report.md"


def build_parser_bug_report(prog: str) -> Parser:
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


def run_bug_report(words: Sequence[str], prog: str) -> int:
    arguments = build_parser_bug_report(prog).parse_all(words)
    if arguments.run is not None and not arguments.run.is_dir():
        raise CommandLineError(
            f"{arguments.run}: is no folder. Give the folder of a run (its --checkpoint-dir), or nothing to report on this machine."
        )
    # Not imported above: --help needs none of it.
    from myxtts.monitoring.machine_facts import LEFT_OUT
    from myxtts.tuning.machine_report import make_bug_report

    text = make_bug_report(arguments.run, os.environ)
    write_text(arguments.out, text)
    print(f"Written {arguments.out} ({len(text.encode()) / 1000:.0f} kB). Nothing was sent anywhere.\n")
    print(textwrap.fill(LEFT_OUT, 80))
    return 0
