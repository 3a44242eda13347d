"""A model speaks the chosen sentences, the judges listen, and sounds, figures and page are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from myxtts import __version__
from myxtts.errors import MyXTTSError
from myxtts.evaluation.errors import JudgeFailedError, JudgeRequestError
from myxtts.evaluation.evaluator import Evaluator, Progress, evaluate_sentences
from myxtts.evaluation.gaps import list_gaps
from myxtts.evaluation.judges import OWN, Judge, JudgeChoice
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.page import format_page
from myxtts.evaluation.request import EvaluationRequest, Judges, Material
from myxtts.evaluation.results import Evaluation, dump_evaluation
from myxtts.files import open_file_atomically, open_scratch_folder
from myxtts.inference.decoder_vocoder import DecoderVocoder
from myxtts.inference.synthesizer import Synthesizer
from myxtts.monitoring.metrics_log import FILE_NAME, read_metrics

JSON_NAME, PAGE_NAME = "evaluation.json", "evaluation.html"


def run_evaluation(
    request: EvaluationRequest,
    material: Material,
    judges: Judges,
    synthesizer: Synthesizer,
    progress: Progress | None = None,
) -> Evaluation:
    """What was found; sounds, figures and page are in `request.out` then.

    Args:
        material: from `choose_material`.
        judges: from `open_judges`.
        synthesizer: the model.
    """
    recogniser, given = judges
    speaker_judge = given or _choose_own_judge(request.speaker_judge, synthesizer)
    with open_scratch_folder("judge") as heard:
        jury = Jury(recogniser, speaker_judge, heard)
        jury.meet_speakers(material.recordings)
        evaluator = Evaluator(synthesizer, request.settings, request.out, jury)
        spoken, failures = evaluate_sentences(material.sentences, evaluator, progress)
        evaluation = Evaluation(
            facts=_describe_run(request, material, synthesizer, jury),
            uses_decoder=isinstance(synthesizer.vocoder, DecoderVocoder),
            sentences=spoken,
            failures=[*failures, *jury.failures],
            not_measured=list_gaps(material.sentences, jury, has_codec=synthesizer.xtts.dvae is not None),
            set_aside=material.scan.drops.to_json(),
        )
    _write(evaluation, request.out, material.directory)
    return evaluation


def _choose_own_judge(choice: JudgeChoice, synthesizer: Synthesizer) -> Judge | None:
    """The model's own speaker encoder, where it is asked for, or where there is one and nobody else was asked for. Better than
    none, but it judges what it was trained beside."""
    has_encoder = synthesizer.xtts.speaker_encoder is not None
    if choice.name == OWN and not has_encoder:
        raise JudgeRequestError(
            "--speaker-judge own takes a model with a trained speaker encoder, but this one has none. Give --speaker-judge "
            "resemblyzer, or another."
        )
    if not has_encoder or (choice.name or OWN) != OWN or choice.command is not None:
        return None

    def ask(wav: Path, language: str) -> Any:
        try:
            return synthesizer.clone_voice([wav]).speaker_G
        except MyXTTSError as error:
            raise JudgeFailedError(str(error)) from error

    return Judge("the model's own speaker encoder", ask)


def _describe_run(
    request: EvaluationRequest, material: Material, synthesizer: Synthesizer, jury: Jury
) -> Mapping[str, Any]:
    directory = material.directory.resolve()
    return {
        "myxtts": __version__,
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "checkpoint": {
            "name": f"{directory.parent.name}/{directory.name}"
            if directory.name.startswith("step-")
            else directory.name,
            "path": str(material.directory),
            "sound": synthesizer.vocoder.how,
            "vocoder": synthesizer.vocoder.name,
        },
        "data": {
            "name": request.data.resolve().name,
            "path": str(request.data),
            "split": request.split,
            "clips": len(material.scan.corpus),
        },
        "judges": {
            "recogniser": jury.recogniser and jury.recogniser.name,
            "speaker_judge": jury.speaker_judge and jury.speaker_judge.name,
            "speakers": list(jury.speakers),
        },
        "settings": asdict(request.settings),
    }


def _write(evaluation: Evaluation, folder: Path, directory: Path) -> None:
    # The metrics of the run that a checkpoint belongs to are beside it.
    metrics = directory.parent / FILE_NAME
    rows = read_metrics(metrics).rows if metrics.is_file() else ()
    with open_file_atomically(folder / JSON_NAME) as file:
        file.write((json.dumps(dump_evaluation(evaluation), ensure_ascii=False, indent=1) + "\n").encode())
    with open_file_atomically(folder / PAGE_NAME) as file:
        file.write(format_page(evaluation, folder, rows).encode())
