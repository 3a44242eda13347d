"""`myxtts data-prepare`: a copy of a corpus that the workers of a tf.data service can read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.parser import Parser
from myxtts.config import resolve_config
from myxtts.config.flags import add_setting_flags

SHOWN = ("data.train_data", "data.language", "data.num_workers", "data.strict", "data.follow_symlinks")


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Write a copy of a corpus that data workers can read: every clip as mono wav at the model's rate, with the "
        "samples that training on the original would use, bit for bit. Clips that cannot be read are listed and left out.",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="where to write it, on storage that all machines share",
    )
    add_setting_flags(parser, show=SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.data.demo_corpus import demo_corpus_path
    from myxtts.data.prepared_corpus import prepare_corpus
    from myxtts.data.scan import scan_corpus
    from myxtts.data.scan_choice import choose_workers
    from myxtts.data.verdicts import ClipLimits
    from myxtts.utils.commons import setup_logging

    setup_logging()
    scan = scan_corpus(
        Path(config.data.train_data) if config.data.train_data else demo_corpus_path(),
        language=config.data.language,
        # What a run sets aside by its own limits, it sets aside from the copy as well.
        limits=ClipLimits(min_seconds=0.0, max_samples=sys.maxsize, max_tokens=sys.maxsize),
        follow_symlinks=config.data.follow_symlinks,
        strict=config.data.strict,
        workers=choose_workers(config),
    )
    made = prepare_corpus(scan.corpus, arguments.out, workers=choose_workers(config), progress=_show_progress)
    print(
        f"{made.clips} clips in {arguments.out} ({made.size_bytes / 1e6:.0f} MB): {made.converted} converted, "
        f"{made.clips - made.converted} copied; {made.reused} were there already."
    )
    print(f"Train on it with --train-data {shlex.quote(str(arguments.out))}")
    return 0


def _show_progress(kind: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rWriting {kind}: {done} of {total}", end=end, file=sys.stderr, flush=True)
