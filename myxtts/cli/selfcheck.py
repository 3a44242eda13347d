"""`myxtts selfcheck`: everything that depends on real cards, tried on yours. Exit code 1 when something failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.files import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError, DevicePlanError

if TYPE_CHECKING:
    from myxtts.training.selfcheck.checks import Check
    from myxtts.training.selfcheck.situation import Situation

FILE_NAME = "selfcheck.md"


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Try on your cards what has never run on a GPU where MyXTTS is made: readings, order, memory limits, copies, "
        "short trainings in every mode whose losses must agree, faults, speaking. Writes a report to post, without anything "
        "private. Each check has its own process and time limit. Exit code 1: something failed.",
    )
    parser.add_argument(
        "--data-gpu", type=int, metavar="ID", help="the card that prepares (default: the second in sight)"
    )
    parser.add_argument(
        "--model-gpu", type=int, metavar="ID", help="the card that trains (default: the first in sight)"
    )
    parser.add_argument("--quick", action="store_true", help="devices and copies only: about a minute")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this check and what it needs; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="show the checks and what each proves, and stop")
    parser.add_argument(
        "--open-ports",
        action="store_true",
        help="let the workers of train-parallel use the machine's own network, where a container allows no other; whoever has a login "
        "here can meanwhile reach TensorFlow's ports on loopback, which have no password",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(FILE_NAME), metavar="FILE",
        help=f"the report (default: {FILE_NAME}); its figures go to the same name with .json",
    )  # fmt: skip
    return parser


def run(words: Sequence[str], prog: str) -> int:
    from myxtts.files import open_scratch_folder

    arguments = build_parser(prog).parse_all(words)
    # Not imported above: --help needs none of it.
    from myxtts.config import resolve_config
    from myxtts.training.selfcheck.checks import select_checks

    checks = select_checks(arguments.only, is_quick=arguments.quick)
    if arguments.list:
        print(format_list(checks))
        return 0
    rehearsal = arguments.rehearsal or resolve_config().training.rehearsal
    with open_scratch_folder("selfcheck") as folder:
        situation = choose_devices(rehearsal, arguments.data_gpu, arguments.model_gpu, str(folder))
        situation = replace(situation, opens_ports=arguments.open_ports)
        check_writable(arguments.out, _name_figures(arguments.out))
        return _check(checks, situation, arguments.out)


def choose_devices(rehearsal: bool, data_gpu: int | None, model_gpu: int | None, folder: str) -> Situation:
    """The cards that take part: those given, else the first two in sight. Without a card there must be a rehearsal."""
    from myxtts.devices.environment import select_visible
    from myxtts.devices.machine import read_machine
    from myxtts.training.selfcheck.situation import Situation

    if (data_gpu is None) != (model_gpu is None):
        raise CommandLineError("--data-gpu and --model-gpu are given together, but only one is. Give both, or neither.")
    if rehearsal:
        return Situation(True, 0 if data_gpu is None else data_gpu, 1 if model_gpu is None else model_gpu, folder)
    machine = read_machine()
    visible = [card.physical_id for card in select_visible(machine.cards, machine.environ)]
    if not visible:
        reason = machine.scan.problem or "no NVIDIA driver shows a card, or CUDA_VISIBLE_DEVICES hides them"
        raise DevicePlanError(
            f"The self-check needs a GPU, but there is none: {reason}. `myxtts diagnose` says what is missing; --rehearsal runs "
            "the same list on the CPU."
        )
    if data_gpu is None or model_gpu is None:
        return Situation(False, int(visible[min(1, len(visible) - 1)]), int(visible[0]), folder)
    unknown = [id for id in (data_gpu, model_gpu) if id not in visible]
    if unknown:
        raise DevicePlanError(
            f"There is no GPU {unknown[0]} in sight, only {', '.join(map(str, visible))}. Give ids of those."
        )
    return Situation(False, data_gpu, model_gpu, folder)


def format_list(checks: Sequence[Check]) -> str:
    """What each check proves."""
    lines = []
    for check in checks:
        needs = " (needs two GPUs)" if check.cards > 1 else ""
        lines.append(f"{check.name}{needs}\n    {check.proves}")
    return "\n".join(lines)


def _check(checks: Sequence[Check], situation: Situation, out: Path) -> int:
    from myxtts.cli.bug_report import make_redactor
    from myxtts.monitoring.hardware_facts import read_hardware
    from myxtts.monitoring.software_facts import read_software
    from myxtts.training.selfcheck.report import (
        SelfcheckReport,
        format_end,
        format_json,
        format_markdown,
        format_outcome,
    )
    from myxtts.training.selfcheck.runner import run_checks

    outcomes = []
    for outcome in run_checks(checks, situation):
        print(format_outcome(outcome), flush=True)
        outcomes.append(outcome)
    report = SelfcheckReport(
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        rehearsal=situation.rehearsal,
        hardware=read_hardware(Path.cwd()),
        software=read_software(),
        outcomes=tuple(outcomes),
    )
    redactor = make_redactor(os.environ, ())
    write_text(out, format_markdown(report, redactor))
    figures = _name_figures(out)
    write_text(figures, format_json(report, redactor) + "\n")
    print(f"\n{format_end(report)}\n\nReport   {out}\nFigures  {figures}")
    return 1 if report.failed else 0


def _name_figures(out: Path) -> Path:
    return out.with_suffix(".json")
