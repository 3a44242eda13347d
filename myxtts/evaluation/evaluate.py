"""A model speaks the chosen sentences, the judges listen, and sounds, figures and page are written."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.errors import EvaluationError, MachineError, MyXTTSError
from myxtts.evaluation.judges import (
    JUDGE_RATE_HZ,
    OWN,
    SPEAKER_JUDGE,
    EvaluationRequest,
    Judge,
    JudgeChoice,
    Judges,
    Jury,
    Material,
    list_gaps,
)
from myxtts.evaluation.page import format_page
from myxtts.evaluation.results import COPY, KINDS, ORIGINAL, SENTENCE, SPOKEN, Figures, make_evaluation
from myxtts.evaluation.scores import measure_mel_distance_db, score_transcript
from myxtts.evaluation.sentences import Sentence, write_wav
from myxtts.files import open_file_atomically, open_scratch_folder
from myxtts.inference.speech import Speech, SpeechSettings
from myxtts.inference.synthesizer import SpeechCopier, Synthesizer, TeacherForcing
from myxtts.inference.voices import Voice
from myxtts.models.gpt import SequenceTooLongError
from myxtts.monitoring.metrics import FILE_NAME, read_metrics
from myxtts.units import SAMPLE_RATE_HZ

_log = logging.getLogger(__name__)


SOUNDS_FOLDER = "wavs"
VOICES_KEPT = 16

Progress = Callable[[int, int], None]
"""Called with the sentences done and all."""
Sound = tuple[NDArray[np.float32], int]
"""Samples, and their rate in Hz."""


class Evaluator:
    """Makes the sounds of a sentence (the recording, its copy through the codec, the text spoken anew), writes them into a folder,
    and has them judged."""

    def __init__(self, synthesizer: Synthesizer, settings: SpeechSettings, folder: Path, jury: Jury):
        self._synthesizer, self._settings, self._folder, self._jury = synthesizer, settings, folder, jury
        self._teacher = TeacherForcing(synthesizer.xtts)
        self._copier = None if synthesizer.xtts.dvae is None else SpeechCopier(synthesizer.xtts)
        self._clone = lru_cache(VOICES_KEPT)(synthesizer.clone_voice)
        (folder / SOUNDS_FOLDER).mkdir(parents=True, exist_ok=True)

    def evaluate_all(self, sentences: Sequence[Sentence], progress: Progress) -> tuple[list[Figures], list[Figures]]:
        """What became of each sentence, and which failed. Raises `MachineError` where not one could be spoken."""
        spoken: list[Figures] = []
        failures: list[Figures] = []
        for number, sentence in enumerate(sentences, start=1):
            try:
                spoken.append(self.evaluate(number, sentence))
            except MyXTTSError as error:
                _log.warning("%s: left out: %s", sentence.name, error)
                failures.append({"name": sentence.name, "what": SENTENCE, "reason": str(error)})
            progress(number, len(sentences))
        if not spoken:
            raise MachineError(
                f"Not one of {len(sentences)} sentences could be spoken. The first, {failures[0]['name']}: {failures[0]['reason']}"
            )
        return spoken, failures

    def evaluate(self, number: int, sentence: Sentence) -> Figures:
        """How a sentence went. Raises an error of ours where its recording or text cannot be used."""
        recording = read_clip(sentence.file)
        voice = self._clone(sentence.prompts)
        speech, seconds_to_speak = self._speak(sentence, voice)
        sounds = {ORIGINAL: (recording, SAMPLE_RATE_HZ), SPOKEN: (speech.samples, speech.rate_hz)}
        correct_codes = true_codes = None
        if self._copier is not None:
            sounds[COPY] = self._copier.copy(recording), SAMPLE_RATE_HZ
            codes_M = self._copier.encode(recording)
            ids = self._synthesizer.tokenizer.encode(sentence.text, sentence.language)
            # A clip may be longer than the model takes in one go.
            with contextlib.suppress(SequenceTooLongError):
                correct_codes, true_codes = self._teacher.count_hits(codes_M, ids, voice), len(codes_M) + 1
        return {
            "name": sentence.name,
            "text": sentence.text,
            "speaker": sentence.speaker,
            "language": sentence.language,
            "voice": {"kind": sentence.prompt_kind, "recordings": [path.name for path in sentence.prompts]},
            "codes": sum(piece.codes for piece in speech.pieces),
            # Whether the model came to an end by itself in every piece.
            "is_stopped": not speech.unfinished,
            "seconds_to_speak": seconds_to_speak,
            "correct_codes": correct_codes,
            "true_codes": true_codes,
            **{kind: self._hear(number, sentence, kind, sounds) for kind in KINDS if kind in sounds},
        }

    def _speak(self, sentence: Sentence, voice: Voice) -> tuple[Speech, float]:
        """The speech, and the seconds it took without compiling."""
        for _ in range(2):
            compiled, started = self._synthesizer.traces, time.perf_counter()
            speech = self._synthesizer.speak(sentence.text, voice, sentence.language, self._settings)
            seconds = time.perf_counter() - started
            if self._synthesizer.traces == compiled:
                break
        return speech, seconds

    def _hear(self, number: int, sentence: Sentence, kind: str, sounds: Mapping[str, Sound]) -> Figures:
        file = f"{SOUNDS_FOLDER}/{number:04d}-{kind}.wav"
        (recording, _), (made, rate_hz) = sounds[ORIGINAL], sounds[kind]
        write_wav(self._folder / file, made, rate_hz)
        samples = resample_clip(made, rate_hz, SAMPLE_RATE_HZ)
        played = resample_clip(samples, SAMPLE_RATE_HZ, JUDGE_RATE_HZ)
        heard = self._jury.transcribe(sentence, kind, played)
        words, characters = (None, None) if heard is None else score_transcript(sentence.text, heard, sentence.language)
        return {
            # Relative to the folder of the evaluation.
            "file": file,
            "seconds": len(made) / rate_hz,
            "transcript": heard,
            "word_errors": words,
            "character_errors": characters,
            "likeness": self._jury.compare_voice(sentence, kind, played),
            "mel_distance_db": None if kind == ORIGINAL else measure_mel_distance_db(recording, samples),
        }


JSON_NAME, PAGE_NAME = "evaluation.json", "evaluation.html"


def run_evaluation(
    request: EvaluationRequest,
    material: Material,
    judges: Judges,
    synthesizer: Synthesizer,
    progress: Progress = lambda *_: None,
) -> Figures:
    """What was found; sounds, figures and page are in `request.out` then. `choose_material` and `open_judges` come first."""
    recogniser, given = judges
    with open_scratch_folder("judge") as heard:
        jury = Jury(recogniser, given or _choose_own_judge(request.speaker_judge, synthesizer), heard)
        jury.meet_speakers(material.recordings)
        evaluator = Evaluator(synthesizer, request.settings, request.out, jury)
        spoken, failures = evaluator.evaluate_all(material.sentences, progress)
    evaluation = make_evaluation(
        _describe_run(request, material, synthesizer, jury),
        spoken,
        [*failures, *jury.failures],
        list_gaps(material.sentences, jury, has_codec=synthesizer.xtts.dvae is not None),
        material.scan.drops.to_json(),
    )
    # The metrics of the run that a checkpoint belongs to are beside it.
    metrics = material.directory.parent / FILE_NAME
    rows = read_metrics(metrics).rows if metrics.is_file() else ()
    figures = json.dumps(evaluation, ensure_ascii=False, indent=1) + "\n"
    for name, text in ((JSON_NAME, figures), (PAGE_NAME, format_page(evaluation, request.out, rows))):
        with open_file_atomically(request.out / name) as file:
            file.write(text.encode())
    return evaluation


def _choose_own_judge(choice: JudgeChoice, synthesizer: Synthesizer) -> Judge | None:
    """The model's own speaker encoder, where it is asked for, or where there is one and nobody else was asked for. Better than
    none, but it judges what it was trained beside."""
    has_encoder = synthesizer.xtts.speaker_encoder is not None
    if choice.name == OWN and not has_encoder:
        raise EvaluationError(
            "--speaker-judge own takes a model with a trained speaker encoder, but this one has none. "
            f"{SPEAKER_JUDGE.how}"
        )
    if not has_encoder or choice.name not in (None, OWN) or choice.command is not None:
        return None
    name = "the model's own speaker encoder"
    return Judge(SPEAKER_JUDGE, name, lambda wav, _: synthesizer.clone_voice([wav]).speaker_G)


def _describe_run(
    request: EvaluationRequest, material: Material, synthesizer: Synthesizer, jury: Jury
) -> Mapping[str, Any]:
    directory = material.directory.resolve()
    run = f"{directory.parent.name}/" if directory.name.startswith("step-") else ""
    return {
        "myxtts": __version__,
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "checkpoint": {
            "name": f"{run}{directory.name}",
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
