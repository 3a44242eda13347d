"""`myxtts data`: looks at a corpus before a run does, and shows what is in it and what is set aside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from myxtts.cli.parser import Parser
from myxtts.cli.telling import quiet_scan, show_progress
from myxtts.config import resolve_config
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
    from myxtts.data.scan_choice import choose_text_task, scan_train_data

    quiet_scan()
    result = scan_train_data(config, choose_text_task(config), _show_progress)
    overview = describe_corpus(result.corpus, config.data.batch_size)
    print(format_overview(result, overview))
    if arguments.html:
        write_text(arguments.html, format_page(result, overview))
        print(f"Page    {arguments.html}")
    if arguments.json:
        facts = {
            **asdict(overview),
            "plan": [asdict(bucket) for bucket in overview.plan.buckets],
            "linked": result.linked,
            "report": result.drops.to_json(),
        }
        write_text(arguments.json, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        print(f"Facts   {arguments.json}")
    return 0


def _show_progress(kind: str, done: int, total: int) -> None:
    show_progress(f"Looking at {kind}:", done, total)
