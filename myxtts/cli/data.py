"""`myxtts data`: looks at a corpus before a run does, and shows what is in it and what is set aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags

SHOWN = (
    "data.train_data", "data.language", "data.vocabulary", "data.batch_size", "data.num_workers", "data.min_clip_seconds",
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
    from myxtts.cli.data_page import format_page
    from myxtts.cli.data_view import format_overview
    from myxtts.cli.files import write_text
    from myxtts.data.overview import describe_corpus
    from myxtts.data.scan import scan_corpus

    result = scan_corpus(**choose_scan(config), progress=_show_progress if sys.stderr.isatty() else None)
    overview = describe_corpus(result.corpus, config.data.batch_size)
    print(format_overview(result, overview))
    if arguments.html:
        write_text(arguments.html, format_page(result, overview))
        print(f"Page    {arguments.html}")
    if arguments.json:
        facts = {**asdict(overview), "plan": None, "report": result.drops.to_json()}
        write_text(arguments.json, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        print(f"Facts   {arguments.json}")
    return 0


def choose_scan(config: XTTSConfig) -> dict[str, Any]:
    """The arguments of `scan_corpus` that a configuration stands for."""
    from myxtts.audio.units import SAMPLE_RATE_HZ
    from myxtts.data.checks import CHARACTER_TASK, make_vocabulary_task
    from myxtts.data.demo_corpus import demo_corpus_path
    from myxtts.data.verdicts import ClipLimits

    data = config.data
    limits = ClipLimits(
        min_seconds=data.min_clip_seconds,
        max_samples=int(data.max_clip_seconds * SAMPLE_RATE_HZ),
        # Without a vocabulary characters are counted, and a token is at least one of them.
        max_tokens=data.max_text_length if data.vocabulary else config.model.max_text_tokens,
    )
    return {
        "path": Path(data.train_data) if data.train_data else demo_corpus_path(),
        "language": data.language,
        "limits": limits,
        "text_task": make_vocabulary_task(Path(data.vocabulary)) if data.vocabulary else CHARACTER_TASK,
        "follow_symlinks": data.follow_symlinks,
        "strict": data.strict,
        "workers": None if data.num_workers == "auto" else data.num_workers,
    }


def _show_progress(kind: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rLooking at {kind}: {done} of {total}", end=end, file=sys.stderr, flush=True)
