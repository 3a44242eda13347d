"""`myxtts configure`: settings that suit this machine, found by measuring, in a file that training reads."""

from __future__ import annotations

import argparse
import os
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.output import check_corpora, check_models, check_writable, tell, write_text
from myxtts.cli.parser import Parser
from myxtts.cli.profile import SHOWN
from myxtts.config import resolve_config
from myxtts.config.sources import add_setting_flags
from myxtts.units import format_step_time, wrap_titled

if TYPE_CHECKING:
    from myxtts.tuning.configure import Tuned

OUTPUT = Path("myxtts_tuned.yaml")


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Measure your run on this machine and write settings that suit it: which device prepares, batch x "
        "accumulation, precision, XLA, threads, readers and buffers. What you give stays. All flags of `myxtts train` are taken, "
        "and none is needed. Takes some minutes; nothing is trained that is kept."
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the settings and the defaults three times instead of once, in turn, and show what is in force",
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="FILE", help=f"YAML file to write (default: {OUTPUT})"
    )
    add_setting_flags(parser, SHOWN)


def run(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.devices.machine import prepare_environment, read_machine
    from myxtts.devices.planning import plan_devices
    from myxtts.tuning.configure import format_variables, format_yaml, tune
    from myxtts.tuning.profile import describe_workers, refuse_decoder, request_one

    refuse_decoder(config)
    notes, output, variables = describe_workers(config), arguments.output, arguments.output.with_suffix(".env.sh")
    check_writable(output, variables)
    check_corpora(config)
    check_models(config)
    prepare_environment(os.environ)
    machine = read_machine()
    if config.training.mode != "auto":
        # What cannot be had is refused first, with the command that was given.
        plan_devices(request_one(config, arguments.pasted), machine)
    tuned = tune(config, machine, verifies=arguments.verify, tell=tell)
    print(format_tuned(tuned, notes))
    write_text(output, format_yaml(config, tuned.lines, describe_origin(tuned)))
    write_text(variables, format_variables(tuned.variables, variables.name))
    print(f"\nSettings   {output}\nVariables  {variables}\n\nTrain with")
    print(f"  source {shlex.quote(str(variables))} && myxtts train --config {shlex.quote(str(output))}")
    return 0


def format_tuned(tuned: Tuned, notes: Sequence[str] = ()) -> str:
    """What was found, and why; `notes` say what of the run that was asked for was not measured."""
    lines = ["SETTINGS", *textwrap.wrap(_describe_before(tuned), 80)]
    lines += [*(row for note in notes for row in wrap_titled("Note:", note, indent=2)), ""]
    for answer in tuned.answers:
        taken = answer.taken.name if answer.taken is not None else "unchanged"
        lines += [f"{answer.title}: {taken}", *wrap_titled("", answer.evidence, indent=2)]
    compared = tuned.comparison
    titles = {0: "VERIFIED", 1: "COMPARED, one run of each (--verify: three)"}
    title = titles.get(len(compared.tuned), "VERIFIED, in turn, medians of a step")
    lines += ["", "NOT VERIFIED" if compared.failure else title]
    if compared.tuned and not compared.failure:
        runs = {"the defaults": compared.defaults, "these settings": compared.tuned}
        for (name, results), median_s in zip(runs.items(), compared.medians_s, strict=True):
            rounds = ", ".join(result.describe() for result in results)
            lines.append(f"  {name:<16}{format_step_time(median_s):>9}  ({rounds})")
    lines += wrap_titled("", compared.verdict, indent=2)
    if not compared.failure:
        whose = "these settings" if compared.gain > 0 else "the defaults"
        lines += ["", f"IN FORCE with {whose}, read back from the process that ran them"]
        for name, value in compared.in_force.items():
            lines += wrap_titled(f"  {name}", value, indent=30)
    return "\n".join(lines)


def _describe_before(tuned: Tuned) -> str:
    step = tuned.before.describe()
    if not tuned.refusal:
        return f"With the defaults a step takes {step} in a short trial on this machine."
    refusal = tuned.refusal.partition("\n")[0].rstrip(".")
    return f"There is no memory for the defaults ({refusal}). With the batch that fits a step takes {step} in a short trial."


def describe_origin(tuned: Tuned) -> list[str]:
    """How the settings came about, for the head of their file."""
    # The figures that decided, of whole runs: what the short trials were faster or slower by is with each line.
    names = ("the defaults", "what was found")
    steps = zip(map(format_step_time, tuned.comparison.medians_s), names, strict=False)
    medians = " and ".join(f"{step} with {name}" for step, name in steps) or "unknown time"
    once = " Compared once; --verify compares three times." if len(tuned.comparison.tuned) == 1 else ""
    return [_describe_before(tuned), f"As a run has it, a step took {medians}.{once}", tuned.comparison.verdict]
