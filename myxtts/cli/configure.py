"""`myxtts configure`: settings that suit this machine, found by measuring, in a file that training reads."""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.files import write_text
from myxtts.cli.parser import Parser
from myxtts.cli.profile import SHOWN
from myxtts.cli.telling import tell
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags

if TYPE_CHECKING:
    from myxtts.training.tuning import Tuned
    from myxtts.training.tuning_search import Verification

OUTPUT = Path("myxtts_tuned.yaml")
_WIDTH = 80


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Measure your run on this machine and write settings that suit it: which device prepares, batch x "
        "accumulation, precision, XLA, threads, readers and buffers. What you give stays. All flags of `myxtts train` are taken, "
        "and none is needed. Takes some minutes; nothing is trained that is kept.",
    )
    parser.add_argument(
        "--verify", action="store_true", help="run the settings and the defaults once more, in turn, and show the gain"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="FILE", help=f"YAML file to write (default: {OUTPUT})"
    )
    add_setting_flags(parser, SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.training.profile_plan import describe_workers, refuse_decoder
    from myxtts.training.tuning import tune

    refuse_decoder(config)
    notes = describe_workers(config)
    variables = arguments.output.with_suffix(".env.sh")
    for path in (arguments.output, variables):
        _check_writable(path)
    prepare_environment(os.environ)
    tuned = tune(config, read_machine(), verifies=arguments.verify, tell=tell)
    print(format_tuned(tuned, notes))
    _write(config, tuned, arguments, variables)
    return 0


def format_tuned(tuned: Tuned, notes: Sequence[str] = ()) -> str:
    """What was found, and why.

    Args:
        notes: what of the run that was asked for was not measured.
    """
    from myxtts.monitoring.words import format_step_time

    lines = ["SETTINGS", f"With the defaults a step takes {format_step_time(tuned.before.step_s)}."]
    lines += [*(row for note in notes for row in _indent(note, "Note: ")), ""]
    for answer in tuned.answers:
        taken = answer.taken.name if answer.taken is not None else "unchanged"
        lines += [f"{answer.title}: {taken}", *_indent(answer.evidence)]
    if tuned.verification is not None:
        lines += ["", *format_verification(tuned.verification)]
    return "\n".join(lines)


def format_verification(verification: Verification) -> list[str]:
    """The gain, and what was in force, read back from TensorFlow."""
    from myxtts.monitoring.words import format_step_time

    if verification.is_unchanged:
        return [
            "VERIFIED",
            *_indent("Nothing faster than the defaults was found, so they stay."),
            "",
            *_list_in_force(verification),
        ]
    lines = ["VERIFIED, in turn, medians of a step"]
    for name, seconds in (("the defaults", verification.default_s), ("these settings", verification.tuned_s)):
        rounds = ", ".join(format_step_time(each) for each in seconds)
        lines.append(f"  {name:<16}{format_step_time(statistics.median(seconds)):>9}  ({rounds})")
    if verification.is_kept:
        lines += _indent(f"{verification.gain:.1%} faster; differences below 3 % are within the noise.")
    else:
        slower = f", {-verification.gain:.1%} slower" if verification.gain < 0 else ""
        lines += _indent(f"no gain{slower}: defaults kept. What was found is withdrawn; the file changes nothing.")
    return [*lines, "", *_list_in_force(verification)]


def _list_in_force(verification: Verification) -> list[str]:
    whose = "these settings" if verification.is_kept else "the defaults"
    rows = [
        row
        for name, value in verification.in_force.items()
        for row in textwrap.wrap(value, _WIDTH, initial_indent=f"  {name:<28}", subsequent_indent=" " * 30)
    ]
    return [f"IN FORCE with {whose}, read back from the process that ran them", *rows]


def _write(config: XTTSConfig, tuned: Tuned, arguments: argparse.Namespace, variables: Path) -> None:
    from myxtts.training.tuning_files import format_variables, format_yaml

    write_text(arguments.output, format_yaml(config, tuned.lines, _describe_origin(tuned)))
    write_text(variables, format_variables(tuned.variables, variables.name))
    given = f"--config {shlex.quote(str(arguments.output))}"
    print(f"\nSettings   {arguments.output}\nVariables  {variables}\n\nTrain with")
    print(f"  source {shlex.quote(str(variables))} && python train_main.py {given}")


def _describe_origin(tuned: Tuned) -> list[str]:
    from myxtts.monitoring.words import format_step_time

    notes = [f"With the defaults a step took {format_step_time(tuned.before.step_s)} on this machine."]
    if tuned.verification is None:
        return [*notes, "Not verified: `myxtts configure --verify` compares the two once more, in turn."]
    if tuned.verification.is_unchanged:
        return [*notes, "Nothing faster was found, so the defaults stay in force."]
    if tuned.is_withdrawn:
        return [*notes, "What was found gained nothing when verified, so the defaults stay in force."]
    return [*notes, f"Verified: {tuned.verification.gain:.1%} faster than the defaults."]


def _indent(text: str, first: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent="  ", break_on_hyphens=False)


def _check_writable(path: Path) -> None:
    """Before minutes are spent on settings that could not be written; what is there stays until they are known."""
    write_text(path, path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else "")
