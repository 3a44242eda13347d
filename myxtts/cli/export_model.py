"""`myxtts export`: a model directory of ours becomes files that others read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.parser import Parser


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Write a model's weights under Coqui's names: as safetensors or, with --coqui, as the files Coqui's own "
        "tools load.",
    )
    parser.usage = f"{prog} DIR [flags]"
    parser.add_argument("model", metavar="DIR", type=Path, help="a model directory, or the folder of a run")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--coqui", action="store_true", help="write model.pth, config.json, vocab.json and what else there is"
    )
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    from myxtts.checkpoints.exporting import export_coqui, export_safetensors
    from myxtts.checkpoints.finding import find_model_directory
    from myxtts.checkpoints.model_directory import read_model_directory
    from myxtts.files import require_free_folder

    # Before every byte of a large model is read.
    require_free_folder(arguments.out, [arguments.model])
    model = read_model_directory(find_model_directory(arguments.model))
    names = (export_coqui if arguments.coqui else export_safetensors)(model, arguments.out)
    print(f"Written {arguments.out}: {', '.join(names)}")
    notice = model.manifest.facts.notice
    if notice:
        print(f"\n{notice}")
    return 0
