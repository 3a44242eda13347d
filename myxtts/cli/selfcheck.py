"""`myxtts selfcheck`: everything that depends on real cards, tried on yours. Exit code 1 when something failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.output import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError, DevicePlanError

if TYPE_CHECKING:
    from myxtts.tuning.selfcheck import Check, Situation

FILE_NAME = "selfcheck.md"


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Try on your cards what has never run on a GPU where MyXTTS is made: readings, order, memory limits, copies, "
        "short trainings in every mode whose losses must agree, faults, speaking. Writes a report to post, without anything "
        "private. Each check has its own process and time limit. Exit code 1: something failed.",
    )
    for flag, role, which in (("--data-gpu", "prepares", "second"), ("--model-gpu", "trains", "first")):
        parser.add_argument(flag, type=int, metavar="ID", help=f"the card that {role} (default: the {which} in sight)")
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
    arguments = build_parser(prog).parse_all(words)
    # Not imported above: --help needs none of it.
    from myxtts.config import resolve_config
    from myxtts.files import open_scratch_folder
    from myxtts.tuning.selfcheck import select_checks

    checks = select_checks(arguments.only, is_quick=arguments.quick)
    if arguments.list:
        for check in checks:
            print(f"{check.name}{' (needs two GPUs)' if check.cards > 1 else ''}\n    {check.proves}")
        return 0
    rehearsal = arguments.rehearsal or resolve_config().training.rehearsal
    with open_scratch_folder("selfcheck") as folder:
        situation = choose_devices(rehearsal, arguments.data_gpu, arguments.model_gpu, str(folder))
        check_writable(arguments.out, arguments.out.with_suffix(".json"))
        return _check(checks, replace(situation, opens_ports=arguments.open_ports), arguments.out)


def choose_devices(rehearsal: bool, data_gpu: int | None, model_gpu: int | None, folder: str) -> Situation:
    """The cards that take part: those given, else the first two in sight. Without a card there must be a rehearsal."""
    from myxtts.devices.machine import read_machine, select_visible
    from myxtts.tuning.selfcheck import Situation

    if (data_gpu is None) != (model_gpu is None):
        raise CommandLineError("--data-gpu and --model-gpu are given together, but only one is. Give both, or neither.")
    if rehearsal:
        return Situation(True, 0 if data_gpu is None else data_gpu, 1 if model_gpu is None else model_gpu, folder)
    machine = read_machine()
    visible = [int(card.physical_id) for card in select_visible(machine.cards, machine.environ)]
    if not visible:
        reason = machine.scan.problem or "no NVIDIA driver shows a card, or CUDA_VISIBLE_DEVICES hides them"
        raise DevicePlanError(
            f"The self-check needs a GPU, but there is none: {reason}. `myxtts diagnose` says what is missing; --rehearsal runs "
            "the same list on the CPU."
        )
    if data_gpu is None or model_gpu is None:
        return Situation(False, visible[:2][-1], visible[0], folder)
    if not {data_gpu, model_gpu} <= set(visible):
        raise DevicePlanError(
            f"GPU {data_gpu} and GPU {model_gpu} were given, but in sight are only {', '.join(map(str, visible))}. Give ids of those."
        )
    return Situation(False, data_gpu, model_gpu, folder)


def _check(checks: Sequence[Check], situation: Situation, out: Path) -> int:
    from myxtts.monitoring.machine_facts import make_redactor
    from myxtts.tuning.selfcheck import CheckStatus, format_outcome, format_report, run_checks

    outcomes = []
    for outcome in run_checks(checks, situation):
        print(format_outcome(outcome), flush=True)
        outcomes.append(outcome)
    end, page, facts = format_report(outcomes, rehearsal=situation.rehearsal)
    figures, redact = out.with_suffix(".json"), make_redactor(os.environ, ())
    # After the strings are made: a name may stand inside one of them.
    write_text(out, redact(page))
    write_text(figures, redact(facts))
    print(f"\n{end}\n\nReport   {out}\nFigures  {figures}")
    return int(any(outcome.status is CheckStatus.FAILED for outcome in outcomes))
