"""`myxtts compare RUN RUN`: curves and figures of runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.files import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Put runs side by side: losses by step, step times, throughput, memory, and the settings that differ. The "
        "better figure is marked where one is better. Runs that still train, or were killed, are compared as far as they came.",
    )
    parser.usage = f"{prog} RUN RUN [RUN ...] [flags]"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run (its --checkpoint-dir)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the curves over each other")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures and curves; unknown values are null"
    )
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    # Not imported above: --help needs none of it.
    from myxtts.monitoring.compared_run import read_runs
    from myxtts.monitoring.comparison_page import format_comparison_page
    from myxtts.monitoring.comparison_view import format_comparison, format_comparison_json
    from myxtts.monitoring.run_comparison import FEWEST_RUNS, compare_runs

    if len(arguments.runs) < FEWEST_RUNS:
        raise CommandLineError(
            f"Two runs or more are compared, but only {arguments.runs[0]} is given. As in: {prog} runs/one runs/two"
        )
    check_writable(arguments.html, arguments.json)
    comparison = compare_runs(read_runs(arguments.runs))
    print(format_comparison(comparison))
    written = []
    if arguments.html is not None:
        write_text(arguments.html, format_comparison_page(comparison))
        written.append(f"Page     {arguments.html}")
    if arguments.json is not None:
        write_text(arguments.json, format_comparison_json(comparison) + "\n")
        written.append(f"Figures  {arguments.json}")
    if written:
        print("\n" + "\n".join(written))
    return 0
