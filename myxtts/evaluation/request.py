"""What is to be evaluated, and everything that can be known and refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myxtts.checkpoints.finding import find_model_directory
from myxtts.checkpoints.model_directory import VOCABULARY_NAME, ModelDirectory, read_model_directory
from myxtts.data.scan import ScanResult, make_vocabulary_task, scan_train_data
from myxtts.evaluation.judges import OWN, RECOGNISER, SPEAKER_JUDGE, Judge, JudgeChoice, open_judge
from myxtts.evaluation.sentences import (
    Recordings,
    Sentence,
    Split,
    choose_part,
    choose_recordings,
    choose_sentences,
    find_other_voices,
)
from myxtts.inference.references import read_references
from myxtts.inference.settings import SpeechSettings
from myxtts.inference.speaking_model import require_able_to_speak


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be evaluated, and how."""

    checkpoint: Path
    """A model directory, or the folder of a run."""
    data: Path
    out: Path
    limit: int | None
    """The most sentences; None for all."""
    split: Split = "all"
    language: str | None = None
    """Of lines of the metadata that name none; None for what the model was trained with."""
    references: tuple[Path, ...] = ()
    other_voices: Path | None = None
    recogniser: JudgeChoice = field(default_factory=JudgeChoice)
    speaker_judge: JudgeChoice = field(default_factory=JudgeChoice)
    settings: SpeechSettings = field(default_factory=SpeechSettings)


@dataclass(frozen=True)
class Material:
    """What will be spoken, known before a model is loaded."""

    directory: Path
    sentences: list[Sentence]
    recordings: Recordings
    scan: ScanResult


def choose_material(request: EvaluationRequest) -> Material:
    """Looks at the data and chooses the sentences; what is wrong with the request is said here, before a model is loaded."""
    if request.references:
        read_references(request.references)
    others = find_other_voices(request.other_voices) if request.other_voices else {}
    directory = read_model_directory(find_model_directory(request.checkpoint), verify_checksums=False)
    scan = _scan(request, directory)
    clips = choose_part(scan.corpus, request.split, directory.config.training.seed)
    sentences = choose_sentences(scan.corpus, clips, request.limit, request.references)
    recordings = choose_recordings(scan.corpus, sentences, request.references)
    return Material(directory.path, sentences, {**others, **recordings}, scan)


Judges = tuple[Judge | None, Judge | None]
"""Recogniser and speaker judge; None also where the model's own speaker encoder is to be asked."""


@contextmanager
def open_judges(request: EvaluationRequest) -> Iterator[Judges]:
    """The judges that do not need the model, ready to listen; closed at the end of the block."""
    speaker_judge = JudgeChoice() if request.speaker_judge.name == OWN else request.speaker_judge
    with open_judge(RECOGNISER, request.recogniser) as recogniser, open_judge(SPEAKER_JUDGE, speaker_judge) as speaker:
        yield recogniser, speaker


def _scan(request: EvaluationRequest, directory: ModelDirectory) -> ScanResult:
    """The clips of the data that this model can read, as its training would have chosen them."""
    require_able_to_speak(directory)
    changed: dict[str, Any] = {"train_data": str(request.data), "strict": False}
    if request.language is not None:
        changed["language"] = request.language
    config = directory.config.replace(data=changed)
    return scan_train_data(config, make_vocabulary_task(directory.path / VOCABULARY_NAME))
