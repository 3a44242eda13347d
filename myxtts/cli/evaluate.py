"""`myxtts evaluate`: how well a model speaks, in figures and on a page to listen to."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.output import quiet_scan, show_progress, tell
from myxtts.cli.parser import Parser
from myxtts.cli.speaking import (
    add_checkpoint_flag,
    add_speaking_flags,
    open_speaking_device,
    read_speech_settings,
    tell_code_limit,
)
from myxtts.errors import CommandLineError

if TYPE_CHECKING:
    from myxtts.evaluation.judges import EvaluationRequest

DEFAULT_LIMIT = 20


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Say sentences of a corpus again, and compare: with the recordings, and with what the codec alone makes of "
        "them. Recognisers and speaker judges are other programs; without them the other figures are given."
    )
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--data",
        metavar="PATH",
        type=Path,
        help="a corpus, as `train --train-data` takes it (default: the embedded demo corpus)",
    )
    parser.add_argument(
        "--split",
        choices=("all", "train", "validation"),
        default="all",
        help="which clips: as a run that was given this corpus divides it (default: all)",
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, default=DEFAULT_LIMIT,
        help=f"the most sentences, spread over the corpus; 0 is all (default: {DEFAULT_LIMIT})",
    )  # fmt: skip
    parser.add_argument("--language", metavar="CODE", help="of lines that name none (default: the model's)")
    parser.add_argument(
        "--reference", metavar="FILE", type=Path, action="append", default=[],
        help="a recording of the voice to speak in; may be repeated (default: another clip of each speaker)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("evaluation"), help="the folder to write (default: evaluation)"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of a table")
    _add_judge_flags(parser)
    add_speaking_flags(parser)


def add_recogniser_flags(parser: Parser, default: str = "none") -> None:
    recogniser = parser.add_mutually_exclusive_group()
    recogniser.add_argument(
        "--recogniser", metavar="NAME", help=f"a Python function as module:function, or none (default: {default})"
    )
    recogniser.add_argument(
        "--recogniser-command",
        metavar="COMMAND",
        help="prints what is said in {wav}; {language} is its code. Without {wav} it is started once: see the page on evaluation",
    )


def _add_judge_flags(parser: Parser) -> None:
    add_recogniser_flags(parser)
    speaker = parser.add_mutually_exclusive_group()
    speaker.add_argument(
        "--speaker-judge", metavar="NAME",
        help="module:function, own (the model's speaker encoder) or none (default: own, if there is one)",
    )  # fmt: skip
    speaker.add_argument("--speaker-judge-command", metavar="COMMAND", help="prints the numbers of the voice in {wav}")
    parser.add_argument(
        "--other-voices", metavar="DIR", type=Path,
        help="a folder with a folder of recordings for each of some other speakers, to compare the voice with",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    request = _make_request(arguments)
    from myxtts.evaluation.judges import choose_material, open_judges
    from myxtts.evaluation.results import format_evaluation

    with open_judges(request) as judges:
        with quiet_scan():
            material = choose_material(request)
        try:
            request.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandLineError(
                f"--out {request.out} must be a folder, or a place for one, but cannot be made: {error.strerror}. Give another."
            ) from error
        # A judge may take minutes before the first sentence is said.
        heard = (
            f"the speaker judge has heard {sum(map(len, material.recordings.values()))} recordings to know the voices"
        )
        tell(f"saying {len(material.sentences)} sentences again{f', after {heard}' if judges[1] is not None else ''}")
        with open_speaking_device(rehearsal=arguments.rehearsal):
            from myxtts.evaluation.evaluate import JSON_NAME, PAGE_NAME, run_evaluation
            from myxtts.inference.synthesizer import load_synthesizer

            synthesizer = load_synthesizer(material.directory, vocoder=arguments.vocoder, engine=arguments.engine)
            tell(synthesizer.engine_note)
            tell_code_limit(request.settings, synthesizer.most_codes)
            evaluation = run_evaluation(request, material, judges, synthesizer, partial(show_progress, "Sentence"))
    if arguments.json:
        print(json.dumps(evaluation, ensure_ascii=False, indent=1))
    else:
        print(format_evaluation(evaluation))
        print(f"\nFigures  {request.out / JSON_NAME}\nPage     {request.out / PAGE_NAME}")
    return 0


def _make_request(arguments: argparse.Namespace) -> EvaluationRequest:
    from myxtts.data.ljspeech import demo_corpus_path
    from myxtts.evaluation.judges import EvaluationRequest, JudgeChoice

    if arguments.limit < 0:
        raise CommandLineError(f"--limit must be 0 (all) or more, but is {arguments.limit}.")
    return EvaluationRequest(
        checkpoint=arguments.checkpoint,
        data=arguments.data or demo_corpus_path(),
        out=arguments.out,
        limit=arguments.limit or None,
        split=arguments.split,
        language=arguments.language,
        references=tuple(arguments.reference),
        other_voices=arguments.other_voices,
        recogniser=JudgeChoice(arguments.recogniser, arguments.recogniser_command),
        speaker_judge=JudgeChoice(arguments.speaker_judge, arguments.speaker_judge_command),
        settings=read_speech_settings(arguments),
    )
