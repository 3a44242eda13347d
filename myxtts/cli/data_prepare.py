"""`myxtts data-prepare`: codes that a run will find."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from myxtts.cli.parser import Parser, spell_command
from myxtts.cli.path_checks import check_corpora, check_models
from myxtts.cli.telling import quiet_scan, show_progress
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags
from myxtts.errors import CommandLineError

if TYPE_CHECKING:
    from myxtts.data.drops import Drop
    from myxtts.pipeline.clip_part import ClipPart
    from myxtts.training.code_preparation import PreparedCodes

SHOWN = (
    "data.train_data",
    "data.val_data",
    "data.language",
    "data.num_workers",
    "data.strict",
    "data.follow_symlinks",
    "training.codec",
    "training.init_from",
    "training.deterministic",
)
_LISTED_CLIPS = 3


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Make the codes of all clips of a corpus before it is trained on, or those of one --part of them on each of "
        "several machines, with --codec, or with --init-from a model that has one, and keep them where a run with --cache disk finds "
        "them. Give the flags and the --config of that run.",
    )
    parser.add_argument(
        "--part", metavar="K/N", help="make the codes of the K-th of N equal parts of the clips (default: of all)"
    )
    add_setting_flags(parser, show=SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    part = _choose_part(arguments.part)
    if config.training.codec is None and config.training.init_from is None:
        raise CommandLineError("Codes are made by a codec: give --codec DIR, or --init-from a model that has one.")
    # Not imported above: --help needs none of it.
    from myxtts.cli.plan_view import describe_single_device
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.processes import watch_import
    from myxtts.utils.commons import setup_logging

    setup_logging()
    check_corpora(config)
    prepare_environment(os.environ)
    with watch_import():
        from myxtts.training.code_preparation import plan_preparing_device, prepare_codes, require_use
    require_use(config)
    check_models(config)
    plan = plan_preparing_device(config, read_machine(), spell_command(prog, words))
    print(describe_single_device(plan), file=sys.stderr, flush=True)
    with quiet_scan():
        prepared = prepare_codes(config, plan, part, _show_preparing)
    print(format_prepared_codes(prepared, part))
    print(f"Train on them with {' '.join(_list_run_flags(config))}")
    return 0


def _choose_part(text: str | None) -> ClipPart:
    from myxtts.pipeline.clip_part import MOST_PARTS, ClipPart

    if text is None:
        return ClipPart()
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    number, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= parts <= MOST_PARTS:
        raise CommandLineError(
            f"--part must be like 2/4, the second of four parts: from 1/4 to 4/4, and of {MOST_PARTS} parts at most. It is {text!r}."
        )
    return ClipPart(number, parts)


def format_prepared_codes(prepared: PreparedCodes, part: ClipPart) -> str:
    """What was made and set aside, and which runs will find it."""
    filled = prepared.filled
    which = "" if part.parts == 1 else f"Part {part.number} of {part.parts} has {filled.clips} of "
    lines = [f"{which}{prepared.clips} clips: {filled.made} codes made, {filled.known} were there already."]
    if filled.failed:
        lines.append(f"{len(filled.failed)} could not be read: {_list_clips(filled.failed)}.")
    if prepared.report.drops:
        lines.append(f"Set aside, and not among them:\n{prepared.report.format_table()}")
    if prepared.unused is not None:
        lines.append(prepared.unused)
    width = max(map(len, prepared.depends_on))
    lines.append(f"They are in {prepared.folder}")
    if not prepared.folder.is_relative_to(prepared.corpus):
        lines.append("which is not beside the corpus: other machines find them only if they share it.")
    lines.append("A run finds them there if it has the same:")
    lines += [f"  {name:<{width}}  {value}" for name, value in prepared.depends_on.items()]
    return "\n".join(lines)


def _list_clips(failed: Sequence[Drop]) -> str:
    names = [f"{drop.file} ({drop.reason}: {drop.detail.removesuffix('.')})" for drop in failed[:_LISTED_CLIPS]]
    more = len(failed) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _list_run_flags(config: XTTSConfig) -> list[str]:
    """The flags by which a run finds the codes, apart from those it has anyway."""
    given = {"--train-data": config.data.train_data, "--val-data": config.data.val_data}
    given |= {"--init-from": config.training.init_from, "--codec": config.training.codec}
    words = [word for flag, value in given.items() if value for word in (flag, shlex.quote(value))]
    return [*words, *(["--deterministic"] if config.training.deterministic else []), "--cache", "disk"]


def _show_preparing(kind: str, done: int, total: int) -> None:
    show_progress(f"{'Making' if kind == 'codes' else 'Writing'} {kind}:", done, total)
