"""`myxtts selfcheck`: everything that depends on real cards, tried on yours. Exit code 1 when something failed."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path

from myxtts.cli.output import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.units import format_duration, wrap_titled

FILE_NAME = "selfcheck.md"


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Try on your cards what has never run on a GPU where MyXTTS is made: readings, ids, memory limits, "
        "short trainings in every mode whose losses must agree, faults, speaking. Writes a report to post, without anything "
        "private. Each check has its own process and time limit. Exit code 1: something failed."
    )
    for flag, role, which in (("--data-gpu", "prepares", "second"), ("--model-gpu", "trains", "first")):
        parser.add_argument(flag, type=int, metavar="ID", help=f"the card that {role} (default: the {which} in sight)")
    parser.add_argument("--quick", action="store_true", help="devices only: about a minute")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this check and what it needs; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="show the checks and what each proves, and stop")
    parser.add_argument(
        "--out", type=Path, default=Path(FILE_NAME), metavar="FILE", help=f"the report (default: {FILE_NAME})"
    )


def run(arguments: argparse.Namespace) -> int:
    # Not imported above: --help needs none of it.
    from myxtts.config import resolve_config
    from myxtts.files import open_scratch_folder
    from myxtts.monitoring.machine_facts import redact
    from myxtts.tuning.selfcheck import CheckStatus, choose_devices, format_report, run_checks, select_checks

    checks = select_checks(arguments.only, is_quick=arguments.quick)
    if arguments.list:
        for check in checks:
            print(f"{check.name}{' (needs two GPUs)' if check.cards > 1 else ''}\n    {check.proves}")
        return 0
    rehearsal, outcomes = arguments.rehearsal or resolve_config().training.rehearsal, []
    with open_scratch_folder("selfcheck") as folder:
        situation = choose_devices(rehearsal, arguments.data_gpu, arguments.model_gpu, str(folder))
        check_writable(arguments.out)
        for outcome in run_checks(checks, situation):
            took = f"  {format_duration(outcome.seconds)}" if outcome.seconds else ""
            detail = wrap_titled("", outcome.detail, indent=11, breaks_words=False)
            print(f"{outcome.status:<11}{outcome.check.name}{took}", *detail, sep="\n", flush=True)
            outcomes.append(outcome)
    end, page = format_report(outcomes, rehearsal=rehearsal)
    write_text(arguments.out, redact(page, os.environ))
    print(f"\n{textwrap.fill(end, 80, break_on_hyphens=False)}\n\nReport   {arguments.out}")
    return int(any(outcome.status is CheckStatus.FAILED for outcome in outcomes))
