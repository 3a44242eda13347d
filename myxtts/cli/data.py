"""`myxtts data` and `myxtts data-prepare`: a corpus at a glance, and its codes made before a run."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.output import check_cluster, check_corpora, check_models, quiet_scan, show_progress
from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.sources import add_setting_flags
from myxtts.errors import CommandLineError

if TYPE_CHECKING:
    from myxtts.data.corpus import Corpus
    from myxtts.data.scan import ScanResult
    from myxtts.pipeline.recipe import ClipPart
    from myxtts.tuning.code_preparation import PreparedCodes


SHOWN = (
    "data.train_data", "data.val_data", "data.language", "data.vocabulary", "data.batch_size", "data.num_workers", "data.min_clip_seconds",
    "data.max_clip_seconds", "data.max_text_length", "data.strict", "data.follow_symlinks",
)  # fmt: skip


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Look at a corpus: durations, speakers, languages, what is set aside and why, and what batching costs. "
        "Takes every flag of `train` and the same --config."
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all facts, with every file set aside")
    add_setting_flags(parser, show=SHOWN)


def run(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.cli.output import check_writable, write_text
    from myxtts.data.overview import describe_corpus, format_overview
    from myxtts.reports.pages import format_corpus_page

    check_writable(arguments.html, arguments.json)
    check_corpora(config)
    with quiet_scan():
        result, validation = scan_corpora(config)
    overview = describe_corpus(result.corpus, *list_parts(config, result, validation), config)
    print(format_overview(result, overview, validation))
    if arguments.html:
        write_text(arguments.html, format_corpus_page(result, overview, validation))
        print(f"Page    {arguments.html}")
    if arguments.json:
        facts = {
            **asdict(overview),
            "plan": [asdict(bucket) for bucket in overview.plan.buckets],
            "report": result.drops.to_json(),
            "validation": None if validation is None else validation.drops.to_json(),
        }
        write_text(arguments.json, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        print(f"Facts   {arguments.json}")
    return 0


def list_parts(config: XTTSConfig, result: ScanResult, validation: ScanResult | None) -> tuple[Corpus, Corpus]:
    """What a run would train on, and what it would validate with."""
    from myxtts.data.run_data import split_corpus

    if validation is not None:
        return result.corpus, validation.corpus
    train, apart = map(result.corpus.take, split_corpus(result.corpus, config.training.seed))
    return train, apart


def scan_corpora(config: XTTSConfig) -> tuple[ScanResult, ScanResult | None]:
    """What a run would find in `--train-data`, and in `--val-data` where it is given."""
    from myxtts.data.scan import scan_data
    from myxtts.data.texts import choose_vocabulary
    from myxtts.files import open_scratch_folder

    def show(kind: str, done: int, total: int) -> None:
        show_progress(f"Looking at {kind}:", done, total)

    with open_scratch_folder("data") as folder:
        vocabulary = choose_vocabulary(config, folder, _find_vocabulary(config))
        result = scan_data(config, "train", vocabulary, show)
        if not config.data.val_data:
            return result, None
        return result, scan_data(config, "eval", result.vocabulary or vocabulary, show)


def _find_vocabulary(config: XTTSConfig) -> Path | None:
    """The vocabulary that a run is given; None where it makes its own."""
    from myxtts.checkpoints.model_directory import VOCABULARY_NAME
    from myxtts.checkpoints.store import find_model_directory

    if config.data.vocabulary:
        return Path(config.data.vocabulary)
    if config.training.init_from is None:
        return None
    model = Path(config.training.init_from)
    path = (model.parent if model.is_file() else find_model_directory(model)) / VOCABULARY_NAME
    return path if path.exists() else None


SHOWN_TO_PREPARE = (
    "data.train_data",
    "data.val_data",
    "data.language",
    "data.num_workers",
    "data.strict",
    "data.follow_symlinks",
    "training.codec",
    "training.init_from",
    "training.deterministic",
    "training.cluster",
    "training.preparers",
)
_LISTED_CLIPS = 3


def add_flags_data_prepare(parser: Parser) -> None:
    parser.description = (
        "Make the codes of all clips of a corpus before it is trained on, or those of one --part of them on each of "
        "several machines, or of all on the preparers of a Ray cluster (--cluster and --preparers), with --codec, or with --init-from a model that has one, and keep them where a run with --cache disk finds "
        "them. Give the flags and the --config of that run."
    )
    parser.add_argument(
        "--part", metavar="K/N", help="make the codes of the K-th of N equal parts of the clips (default: of all)"
    )
    add_setting_flags(parser, show=SHOWN_TO_PREPARE)


def run_data_prepare(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    check_cluster(config)
    part = _choose_part(arguments.part)
    if part.parts > 1 and config.training.preparers:
        raise CommandLineError(
            "--part is for machines that are started one by one, and --preparers share the clips by themselves. Give one of the two."
        )
    if config.training.codec is None and config.training.init_from is None:
        raise CommandLineError("Codes are made by a codec: give --codec DIR, or --init-from a model that has one.")
    # Not imported above: --help needs none of it.
    from myxtts.cli.devices import describe_single_device
    from myxtts.devices.machine import prepare_environment, read_machine
    from myxtts.devices.planning import plan_preparing_device
    from myxtts.utils.commons import setup_logging

    setup_logging()
    check_corpora(config)
    prepare_environment(os.environ)
    from myxtts.tuning.code_preparation import prepare_codes, require_use

    require_use(config)
    check_models(config)
    plan = plan_preparing_device(config, read_machine(), arguments.pasted)
    print(describe_single_device(plan), file=sys.stderr, flush=True)
    with quiet_scan():
        prepared = prepare_codes(config, plan, part, lambda kind, *done: show_progress(f"Preparing {kind}:", *done))
    print(format_prepared_codes(prepared, part))
    # The flags by which a run finds the codes, apart from those it has anyway.
    given = {"--train-data": config.data.train_data, "--val-data": config.data.val_data}
    given |= {"--init-from": config.training.init_from, "--codec": config.training.codec}
    words = [word for flag, value in given.items() if value for word in (flag, shlex.quote(value))]
    words += ["--deterministic"] if config.training.deterministic else []
    print(f"Train on them with {' '.join(words)} --cache disk")
    return 0


def _choose_part(text: str | None) -> ClipPart:
    from myxtts.pipeline.recipe import MOST_PARTS, ClipPart

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
        shown = [
            f"{each.file} ({each.reason}: {each.detail.removesuffix('.')})" for each in filled.failed[:_LISTED_CLIPS]
        ]
        more = f" and {len(filled.failed) - len(shown)} more" if len(filled.failed) > len(shown) else ""
        lines.append(f"{len(filled.failed)} could not be read: {', '.join(shown)}{more}.")
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
