"""`myxtts corpus`: long recordings become a corpus to train on, and a corpus that exists is looked at before."""

from __future__ import annotations

import argparse
from pathlib import Path

from myxtts.cli.evaluate import add_recogniser_flags
from myxtts.cli.output import show_progress
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Cut long recordings at their pauses into clips of 1 to 11.6 s, write down what is said, judge every clip and set the "
        "doubtful ones aside: a corpus that `train` takes as it is. A run that was killed goes on when it is given again."
    )
    parser.usage = "myxtts corpus RECORDING... --out FOLDER [flags]"
    parser.add_argument("recordings", metavar="RECORDING", nargs="*", type=Path, help="wav, flac, ogg or mp3")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="the corpus to write: a new or empty folder")
    parser.add_argument(
        "--script", metavar="FILE", type=Path,
        help="the text that is read in the recordings, in their order: its words are taken instead of those heard",
    )  # fmt: skip
    parser.add_argument(
        "--check", metavar="CORPUS", type=Path,
        help="judge the clips of a corpus that exists instead; with --out, write clips.json there",
    )  # fmt: skip
    parser.add_argument("--language", metavar="CODE", default="en", help="that is spoken (default: en)")
    add_recogniser_flags(parser, "Moonshine, for English")


def run(arguments: argparse.Namespace) -> int:
    is_check = arguments.check is not None
    if is_check and (arguments.recordings or arguments.script):
        raise CommandLineError("--check looks at a corpus that exists: leave the recordings and --script out.")
    if not is_check and not arguments.recordings:
        raise CommandLineError("Give one or more recordings, or a corpus with --check.")
    if not is_check and arguments.out is None:
        raise CommandLineError("Give the folder of the new corpus with --out FOLDER.")
    # Not imported above: --help needs none of it.
    from myxtts.evaluation.judges import RECOGNISER, JudgeChoice, open_judge
    from myxtts.recordings.build import CorpusRequest, build_corpus, check_corpus
    from myxtts.recordings.transcribing import choose_recogniser
    from myxtts.text.normalise import resolve_language

    language = resolve_language(arguments.language)
    choice = choose_recogniser(JudgeChoice(arguments.recogniser, arguments.recogniser_command), language)
    with open_judge(RECOGNISER, choice) as recogniser:
        if is_check:
            book = check_corpus(arguments.check, arguments.out, language, recogniser, show_progress)
        else:
            recordings = tuple(dict.fromkeys(arguments.recordings))
            request = CorpusRequest(
                recordings=recordings, out=arguments.out, script=arguments.script, language=language
            )
            book = build_corpus(request, recogniser, show_progress)
    print(book.make_report().format_table())
    if arguments.out is not None:
        print(f"\nEvery clip  {arguments.out / 'clips.json'}")
    if not is_check:
        spoken = "" if language == "en" else f" --language {language}"
        print(f"Train on it with --train-data {arguments.out}{spoken}")
    return 0
