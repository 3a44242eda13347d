"""`myxtts data`: looks at a corpus before a run does, and shows what is in it and what is set aside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.parser import Parser
from myxtts.cli.path_checks import check_corpora
from myxtts.cli.telling import quiet_scan, show_progress
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags

if TYPE_CHECKING:
    from myxtts.data.corpus import Corpus
    from myxtts.data.scan import ScanResult

SHOWN = (
    "data.train_data", "data.val_data", "data.language", "data.vocabulary", "data.batch_size", "data.num_workers", "data.min_clip_seconds",
    "data.max_clip_seconds", "data.max_text_length", "data.strict", "data.follow_symlinks",
)  # fmt: skip


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Look at a corpus: durations, speakers, languages, what is set aside and why, and what batching costs. "
        "Takes every flag of `train` and the same --config.",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all facts, with every file set aside")
    add_setting_flags(parser, show=SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.cli.data_view import format_overview
    from myxtts.cli.files import check_writable, write_text
    from myxtts.data.overview import describe_corpus
    from myxtts.reports.pages import format_corpus_page

    check_writable(arguments.html, arguments.json)
    check_corpora(config)
    with quiet_scan():
        result, validation = scan_corpora(config)
    overview = describe_corpus(result.corpus, *list_parts(config, result, validation), config.data.batch_size)
    print(format_overview(result, overview, validation))
    if arguments.html:
        write_text(arguments.html, format_corpus_page(result, overview, validation))
        print(f"Page    {arguments.html}")
    if arguments.json:
        facts = {
            **asdict(overview),
            "plan": [asdict(bucket) for bucket in overview.plan.buckets],
            "linked": result.linked,
            "report": result.drops.to_json(),
            "validation": None if validation is None else validation.drops.to_json(),
        }
        write_text(arguments.json, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        print(f"Facts   {arguments.json}")
    return 0


def list_parts(config: XTTSConfig, result: ScanResult, validation: ScanResult | None) -> tuple[Corpus, Corpus]:
    """What a run would train on, and what it would validate with."""
    from myxtts.data.split import split_corpus

    if validation is not None:
        return result.corpus, validation.corpus
    split = split_corpus(result.corpus, config.training.seed)
    return result.corpus.take(split.train), result.corpus.take(split.validation)


def scan_corpora(config: XTTSConfig) -> tuple[ScanResult, ScanResult | None]:
    """What a run would find in `--train-data`, and in `--val-data` where it is given."""
    from myxtts.data.run_data import TextMeasure
    from myxtts.data.scan import make_vocabulary_task, scan_train_data, scan_val_data
    from myxtts.files import open_scratch_folder

    given = _find_vocabulary(config)
    if given is not None:
        # Refused here, if it is none, and not after the scan.
        make_vocabulary_task(given)
    with open_scratch_folder("data") as folder:
        texts = TextMeasure(config, folder, given)
        result = scan_train_data(config, texts.choose_task, _show_scan)
        if not config.data.val_data:
            return result, None
        return result, scan_val_data(config, make_vocabulary_task(texts.vocabulary), _show_scan)


def _find_vocabulary(config: XTTSConfig) -> Path | None:
    """The vocabulary that a run is given; None where it makes its own."""
    from myxtts.checkpoints.finding import find_model_directory
    from myxtts.checkpoints.model_directory import VOCABULARY_NAME

    if config.data.vocabulary:
        return Path(config.data.vocabulary)
    if config.training.init_from is None:
        return None
    model = Path(config.training.init_from)
    path = (model.parent if model.is_file() else find_model_directory(model)) / VOCABULARY_NAME
    return path if path.exists() else None


def _show_scan(kind: str, done: int, total: int) -> None:
    show_progress(f"Looking at {kind}:", done, total)
