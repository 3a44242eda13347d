"""`myxtts import` and `myxtts export`: models of others become ours, and ours theirs."""

from __future__ import annotations

import argparse
from pathlib import Path

from myxtts.cli.parser import Parser


def add_flags_import(parser: Parser) -> None:
    parser.description = (
        "Convert a Coqui XTTS checkpoint (model.pth, or a trainer's checkpoint) to a model directory. Needs no "
        "torch, and executes nothing from the file."
    )
    parser.add_argument("model", metavar="MODEL.pth", type=Path, help="the checkpoint")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="the model directory to write: new, empty, or a model to replace",
    )
    parser.add_argument("--dvae", metavar="FILE", type=Path, help="dvae.pth: needed to fine-tune")
    parser.add_argument("--vocab", metavar="FILE", type=Path, help="vocab.json: needed to fine-tune and to speak")
    parser.add_argument(
        "--mel-stats", metavar="FILE", type=Path, help="mel_stats.pth, where the model does not hold it"
    )
    parser.add_argument("--speakers", metavar="FILE", type=Path, help="speakers_xtts.pth: named voices")
    parser.add_argument("--allow-missing", action="store_true", help="go on where tensors are missing")
    parser.add_argument("--allow-unexpected", action="store_true", help="go on where there are tensors nobody knows")


def run_import(arguments: argparse.Namespace) -> int:
    from myxtts.checkpoints.coqui import import_coqui_files
    from myxtts.models.weights import count_parameters

    report = import_coqui_files(
        arguments.model,
        arguments.out,
        dvae=arguments.dvae,
        vocabulary=arguments.vocab,
        mel_statistics=arguments.mel_stats,
        speakers=arguments.speakers,
        allow_missing=arguments.allow_missing,
        allow_unexpected=arguments.allow_unexpected,
    )
    model = report.config
    counts = ", ".join(
        f"{part.replace('_', ' ')} {count / 1e6:.1f} M"
        for part, count in count_parameters(model).items()
        if part in report.parts
    )
    print(
        f"Read    {report.kind.value}: {report.tensors} tensors, {report.dvae_tensors} of the DVAE, {len(report.voices)} voices"
    )
    print(
        f"Model   {model.gpt_layers} layers, {model.gpt_width} wide, {model.gpt_heads} heads, {model.text_tokens} text tokens"
    )
    print(f"Size    {counts}")
    if report.ignored:
        print(f"Ignored {len(report.ignored)} entries of no use here, such as {report.ignored[0]}")
    if not report.differences.is_complete:
        print(f"Allowed {report.differences.describe()}")
    for part in report.missing_parts:
        print(f"Lacks   {part}")
    print(f"Written {arguments.out}")
    if report.notice is not None:
        print(f"\n{report.notice}")
    return 0


def add_flags_export(parser: Parser) -> None:
    parser.description = (
        "Write one model, whatever adapter or decoder it is put together from: as a model directory (safetensors, under Coqui's "
        "names) or, with --coqui, as the files Coqui's own tools load."
    )
    parser.add_argument("model", metavar="DIR", type=Path, help="a model directory, or the folder of a run")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--coqui", action="store_true", help="write model.pth, config.json, vocab.json and what else there is"
    )


def run_export(arguments: argparse.Namespace) -> int:
    from myxtts.checkpoints.coqui_export import explain_loading, export_coqui
    from myxtts.checkpoints.model_directory import copy_model_directory, read_model_directory
    from myxtts.checkpoints.store import find_model_directory
    from myxtts.files import require_free_folder

    # Before every byte of a large model is read.
    require_free_folder(arguments.out)
    model = read_model_directory(find_model_directory(arguments.model))
    (export_coqui if arguments.coqui else copy_model_directory)(model, arguments.out)
    print(f"Written {arguments.out}: {', '.join(sorted(path.name for path in arguments.out.iterdir()))}")
    for said in (explain_loading(model) if arguments.coqui else None, model.manifest.facts.notice):
        if said:
            print(f"\n{said}")
    return 0
