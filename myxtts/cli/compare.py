"""`myxtts compare RUN RUN`: figures of runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.files import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def build_parser(prog: str) -> Parser:
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


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    if len(arguments.runs) < 2:
        raise CommandLineError(
            f"Two runs or more are compared, but only {arguments.runs[0]} is given. As in: {prog} runs/one runs/two"
        )
    check_writable(arguments.html, arguments.json)
    # Not imported above: --help needs none of it.
    from myxtts.reports import compare

    comparison = compare.compare_runs(arguments.runs)
    print(compare.format_comparison(comparison))
    if arguments.html is not None:
        write_text(arguments.html, compare.format_comparison_page(comparison))
        print(f"\nPage     {arguments.html}")
    if arguments.json is not None:
        write_text(arguments.json, compare.format_comparison_json(comparison) + "\n")
        print(f"\nFigures  {arguments.json}")
    return 0
