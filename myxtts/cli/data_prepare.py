"""`myxtts data-prepare`: a copy of a corpus that data workers can read, codes that a run will find, or both."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
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
        description="Prepare a corpus before it is trained on. With --out: write a copy that data workers can read, every clip as mono "
        "wav at the model's rate, with the samples that training on the original would use, bit for bit; clips that cannot be read "
        "are listed and left out. With --codec, or --init-from a model that has one: make the codes of all clips, or of one --part "
        "of them on each of several machines, and keep them where a run with --cache disk finds them; give the flags and the "
        "--config of that run. With both: the copy first, then its codes.",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="where to write a copy, on storage that all machines share: new, empty, or a copy to go on with",
    )
    parser.add_argument(
        "--part", metavar="K/N", help="make the codes of the K-th of N equal parts of the clips (default: of all)"
    )
    add_setting_flags(parser, show=SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    out: Path | None = arguments.out
    has_codec = config.training.codec is not None or config.training.init_from is not None
    part = _choose_part(arguments.part, has_codec=has_codec, out=out)
    if out is None and not has_codec:
        raise CommandLineError(
            "There is nothing to prepare. Give --out FOLDER for a copy that data workers can read, --codec DIR for codes that a run "
            "will find, or both."
        )
    if config.data.val_data and not has_codec:
        raise CommandLineError(
            "--out copies --train-data alone, so --val-data would have no effect. Leave it out, and copy that corpus by a call of its own: "
            f"--train-data {shlex.quote(config.data.val_data)}, with another --out."
        )
    # Not imported above: --help needs none of it.
    from myxtts.utils.commons import setup_logging

    setup_logging()
    # All of it before the copy, which may take hours.
    check_corpora(config)
    if has_codec:
        _load_training(config)
    check_models(config)
    if out is not None:
        _write_copy(config, out)
        config = config.replace(data={"train_data": str(out)})
    if has_codec:
        _make_codes(config, part, spell_command(prog, words))
    return 0


def _choose_part(text: str | None, *, has_codec: bool, out: Path | None) -> ClipPart:
    from myxtts.pipeline.clip_part import MOST_PARTS, ClipPart

    if text is None:
        return ClipPart()
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    number, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= parts <= MOST_PARTS:
        raise CommandLineError(
            f"--part must be like 2/4, the second of four parts: from 1/4 to 4/4, and of {MOST_PARTS} parts at most. It is {text!r}."
        )
    if not has_codec:
        raise CommandLineError("--part shares out the making of codes, for which a codec is needed. Give --codec DIR.")
    if out is not None:
        raise CommandLineError(
            "--part shares out the making of codes, but with --out every machine would write the same copy. Write the copy first, on one "
            f"machine, and then make the parts of its codes with --train-data {shlex.quote(str(out))}."
        )
    return ClipPart(number, parts)


def _write_copy(config: XTTSConfig, out: Path) -> None:
    from myxtts.data.demo_corpus import demo_corpus_path
    from myxtts.data.prepared_corpus import prepare_corpus
    from myxtts.data.scan import scan_corpus
    from myxtts.data.scan_choice import choose_workers
    from myxtts.data.verdicts import ClipLimits

    scan = scan_corpus(
        Path(config.data.train_data) if config.data.train_data else demo_corpus_path(),
        language=config.data.language,
        # What a run sets aside by its own limits, it sets aside from the copy as well.
        limits=ClipLimits(min_seconds=0.0, max_samples=sys.maxsize, max_tokens=sys.maxsize),
        follow_symlinks=config.data.follow_symlinks,
        strict=config.data.strict,
        workers=choose_workers(config),
    )
    made = prepare_corpus(scan.corpus, out, workers=choose_workers(config), progress=_show_progress)
    print(
        f"{made.clips} clips in {out} ({made.size_bytes / 1e6:.0f} MB): {made.converted} converted, "
        f"{made.copied} copied; {made.reused} were there already."
    )
    print(f"Train on it with --train-data {shlex.quote(str(out))}")


def _load_training(config: XTTSConfig) -> None:
    """Loads TensorFlow, set up as for a run, and refuses settings for which codes would be made in vain."""
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.import_watch import watch_import

    prepare_environment(os.environ)
    with watch_import():
        from myxtts.training.code_preparation import require_use

    require_use(config)


def _make_codes(config: XTTSConfig, part: ClipPart, command: Sequence[str]) -> None:
    from myxtts.cli.plan_view import describe_single_device
    from myxtts.devices.machine import read_machine
    from myxtts.training.code_preparation import plan_preparing_device, prepare_codes

    plan = plan_preparing_device(config, read_machine(), command)
    print(describe_single_device(plan), file=sys.stderr, flush=True)
    with quiet_scan():
        prepared = prepare_codes(config, plan, part, _show_progress)
    print(format_prepared_codes(prepared, part))
    print(f"Train on them with {' '.join(_list_run_flags(config))}")


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


def _show_progress(kind: str, done: int, total: int) -> None:
    show_progress(f"{'Making' if kind == 'codes' else 'Writing'} {kind}:", done, total)
