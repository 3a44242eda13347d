"""A model speaks the chosen sentences, the judges listen, and sounds, figures and page are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from myxtts import __version__
from myxtts.evaluation.evaluator import SOUNDS_FOLDER, Progress, evaluate_sentences
from myxtts.evaluation.gaps import list_gaps
from myxtts.evaluation.judges import OWN, Judge, JudgeChoice
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.own_speaker_judge import OwnSpeakerJudge
from myxtts.evaluation.page import format_page
from myxtts.evaluation.request import EvaluationRequest, Judges, Material
from myxtts.evaluation.results import Evaluation
from myxtts.evaluation.results_json import dump_evaluation
from myxtts.evaluation.sounds import SoundMaker
from myxtts.files import open_file_atomically
from myxtts.inference.decoder_vocoder import DecoderVocoder
from myxtts.inference.synthesizer import Synthesizer
from myxtts.monitoring.metrics_log import FILE_NAME, read_metrics
from myxtts.monitoring.metrics_rows import Row

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
    speaker_judge = judges.speaker_judge or _choose_own_judge(request.speaker_judge, synthesizer)
    maker = SoundMaker(synthesizer, request.settings, request.out / SOUNDS_FOLDER)
    with Jury(judges.recogniser, speaker_judge) as jury:
        jury.meet_speakers(material.recordings)
        spoken, failures = evaluate_sentences(material.sentences, maker, jury, progress)
        evaluation = Evaluation(
            facts=_describe(request, material, synthesizer, jury),
            uses_decoder=isinstance(synthesizer.vocoder, DecoderVocoder),
            sentences=spoken,
            failures=failures,
            not_measured=list_gaps(material.sentences, jury, has_codec=synthesizer.xtts.dvae is not None),
            set_aside=material.scan.drops.to_json(),
        )
    _write(evaluation, request.out, _find_rows(material.directory))
    return evaluation


def _choose_own_judge(choice: JudgeChoice, synthesizer: Synthesizer) -> OwnSpeakerJudge | None:
    """The model's own speaker encoder, where it is asked for, or where there is one and nobody else was asked for."""
    is_free = choice == JudgeChoice(python=choice.python) and synthesizer.xtts.speaker_encoder is not None
    return OwnSpeakerJudge(synthesizer) if choice.name == OWN or is_free else None


def _describe(
    request: EvaluationRequest, material: Material, synthesizer: Synthesizer, jury: Jury
) -> Mapping[str, Any]:
    def name(judge: Judge | None) -> str | None:
        return judge.name if judge is not None else None

    return {
        "myxtts": __version__,
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "checkpoint": {
            "name": _name_checkpoint(material.directory),
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
            "recogniser": name(jury.recogniser),
            "speaker_judge": name(jury.speaker_judge),
            "speakers": list(jury.speakers),
        },
        "settings": asdict(request.settings),
    }


def _name_checkpoint(directory: Path) -> str:
    directory = directory.resolve()
    return f"{directory.parent.name}/{directory.name}" if directory.name.startswith("step-") else directory.name


def _find_rows(directory: Path) -> tuple[Row, ...]:
    """The metrics of the run that a checkpoint belongs to, where they are beside it."""
    path = directory.parent / FILE_NAME
    return read_metrics(path).rows if path.is_file() else ()


def _write(evaluation: Evaluation, folder: Path, rows: tuple[Row, ...]) -> None:
    with open_file_atomically(folder / JSON_NAME) as file:
        file.write((json.dumps(dump_evaluation(evaluation), ensure_ascii=False, indent=1) + "\n").encode())
    with open_file_atomically(folder / PAGE_NAME) as file:
        file.write(format_page(evaluation, folder, rows).encode())
