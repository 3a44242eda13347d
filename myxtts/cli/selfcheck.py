"""`myxtts selfcheck`: everything that depends on real cards, tried on yours. Exit code 1 when something failed."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts import __version__
from myxtts.cli.output import check_writable, write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError, DevicePlanError
from myxtts.units import format_duration, wrap_titled

if TYPE_CHECKING:
    from myxtts.tuning.selfcheck import Check, CheckOutcome, Situation

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
        "--open-ports",
        action="store_true",
        help="let the workers of train-parallel use the machine's own network, where a container allows no other; whoever has a login "
        "here can meanwhile reach TensorFlow's ports on loopback, which have no password",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(FILE_NAME), metavar="FILE",
        help=f"the report (default: {FILE_NAME}); its figures go to the same name with .json",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
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
    data_gpu, model_gpu = (
        visible[:2][-1] if data_gpu is None else data_gpu,
        visible[0] if model_gpu is None else model_gpu,
    )
    if not {data_gpu, model_gpu} <= set(visible):
        raise DevicePlanError(
            f"GPU {data_gpu} and GPU {model_gpu} were given, but in sight are only {', '.join(map(str, visible))}. Give ids of those."
        )
    return Situation(False, data_gpu, model_gpu, folder)


def _check(checks: Sequence[Check], situation: Situation, out: Path) -> int:
    from myxtts.monitoring.machine_facts import redact
    from myxtts.tuning.selfcheck import CheckStatus, run_checks

    outcomes = []
    for outcome in run_checks(checks, situation):
        took = f"  {format_duration(outcome.seconds)}" if outcome.seconds else ""
        detail = wrap_titled("", outcome.detail, indent=11, breaks_words=False)
        print(f"{outcome.status:<11}{outcome.name}{took}", *detail, sep="\n", flush=True)
        outcomes.append(outcome)
    end, page, facts = format_report(outcomes, rehearsal=situation.rehearsal)
    figures = out.with_suffix(".json")
    write_text(out, redact(page, os.environ))
    write_text(figures, redact(facts, os.environ))
    print(f"\n{end}\n\nReport   {out}\nFigures  {figures}")
    return int(any(outcome.status is CheckStatus.FAILED for outcome in outcomes))


def format_report(outcomes: Sequence[CheckOutcome], *, rehearsal: bool) -> tuple[str, str, str]:
    """How it ended, for a terminal; the report to post, as Markdown; all facts, as JSON with null for what is unknown.

    What is private is still in it.
    """
    from myxtts.monitoring.machine_facts import describe_hardware, describe_software, fence
    from myxtts.monitoring.metrics import name_infinities
    from myxtts.tuning.selfcheck import CheckStatus

    failed = [each for each in outcomes if each.status is CheckStatus.FAILED]
    numbers = Counter(each.status for each in outcomes)
    meaning = "Please post the report all the same: nobody may have run this on such cards before."
    if failed:
        names = ", ".join(each.name for each in failed)
        meaning = f"Failed: {names}. Please post the report: it says what was seen instead."
    elif rehearsal:
        meaning = "A rehearsal shows that the checks themselves work; it says nothing about cards."
    count = ", ".join(f"{numbers[status]} {status}" for status in CheckStatus if numbers[status])
    end = f"{count} in {format_duration(sum(each.seconds for each in outcomes))}. {meaning}"
    kind, now = "rehearsal on logical CPU devices" if rehearsal else "on GPUs", datetime.now().astimezone()
    title = f"MyXTTS {__version__}: self-check {kind}, {now.isoformat(timespec='seconds')}"
    machine = [*describe_hardware(Path.cwd()), *describe_software()]
    rows = ["| check | result | time | what was seen |", "|---|---|---:|---|"]
    for each in outcomes:
        seen = f"{each.proves}: {each.detail}".replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {each.name} | {each.status} | {each.seconds:.1f} s | {seen} |")
    parts = [f"# {title}", end, "\n".join(f"- {line}" for line in machine), "\n".join(rows)]
    parts += [f"## {each.name}: what its process wrote last\n\n{fence(each.last_words)}" for each in failed]
    figures = [json.dumps({each.name: name_infinities(each.facts)}) for each in outcomes if each.facts]
    parts.append("## Figures\n\n" + fence("\n".join(figures), "json"))
    facts = {"title": title, "machine": machine, "checks": [asdict(each) for each in outcomes]}
    text = json.dumps(name_infinities(facts), ensure_ascii=False, allow_nan=False, indent=1)
    return textwrap.fill(end, 80, break_on_hyphens=False), "\n\n".join(parts) + "\n", text + "\n"
