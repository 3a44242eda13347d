"""Sentences are spoken one by one, judged, and compared with their recordings; one that fails does not end the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.errors import MyXTTSError
from myxtts.evaluation.error_rates import score_transcript
from myxtts.evaluation.errors import NothingEvaluatedError
from myxtts.evaluation.jury import Jury
from myxtts.evaluation.mel_distance import measure_mel_distance_db
from myxtts.evaluation.results import (
    COPY,
    KINDS,
    ORIGINAL,
    SENTENCE,
    SPOKEN,
    FailedFigure,
    Heard,
    SpokenSentence,
    VoiceSource,
)
from myxtts.evaluation.sentences import Sentence
from myxtts.evaluation.wav_files import write_wav
from myxtts.inference.copying import SpeechCopier
from myxtts.inference.settings import SpeechSettings
from myxtts.inference.speech import Speech
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.teacher_forcing import CodeHits, TeacherForcing
from myxtts.inference.voices import Voice
from myxtts.models.sequences import SequenceTooLongError

_log = logging.getLogger(__name__)

SOUNDS_FOLDER = "wavs"
VOICES_KEPT = 16

Progress = Callable[[int, int], None]
"""Called with the sentences done and all."""


def evaluate_sentences(
    sentences: Sequence[Sentence], evaluator: Evaluator, progress: Progress | None = None
) -> tuple[list[SpokenSentence], list[FailedFigure]]:
    """What became of each sentence, and which failed. Raises `NothingEvaluatedError` where not one could be spoken."""
    spoken: list[SpokenSentence] = []
    failures: list[FailedFigure] = []
    for number, sentence in enumerate(sentences, start=1):
        try:
            spoken.append(evaluator.evaluate(number, sentence))
        except MyXTTSError as error:
            _log.warning("%s: left out: %s", sentence.name, error)
            failures.append(FailedFigure(sentence.name, SENTENCE, str(error)))
        if progress is not None:
            progress(number, len(sentences))
    if not spoken:
        raise NothingEvaluatedError(
            f"Not one of {len(sentences)} sentences could be spoken. The first, {failures[0].name}: {failures[0].reason}"
        )
    return spoken, failures


class Evaluator:
    """Makes the sounds of a sentence (the recording, its copy through the codec, the text spoken anew) and has them judged.

    Args:
        synthesizer: the model.
        settings: how it speaks.
        folder: of the evaluation; the sound files go into one in it.
        jury: who listens.
    """

    def __init__(self, synthesizer: Synthesizer, settings: SpeechSettings, folder: Path, jury: Jury):
        self._synthesizer, self._settings, self._folder, self._jury = synthesizer, settings, folder, jury
        self._teacher = TeacherForcing(synthesizer.xtts)
        self._copier = None if synthesizer.xtts.dvae is None else SpeechCopier(synthesizer.xtts)
        self._clone = lru_cache(VOICES_KEPT)(synthesizer.clone_voice)
        (folder / SOUNDS_FOLDER).mkdir(parents=True, exist_ok=True)

    def evaluate(self, number: int, sentence: Sentence) -> SpokenSentence:
        """How a sentence went. Raises an error of ours where its recording or text cannot be used."""
        recording = read_clip(sentence.file)
        voice = self._clone(sentence.prompts)
        speech, seconds_to_speak = self._speak(sentence, voice)
        sounds = {ORIGINAL: (recording, SAMPLE_RATE_HZ), SPOKEN: (speech.samples, speech.rate_hz)}
        hits = None
        if self._copier is not None:
            sounds[COPY] = self._copier.copy(recording), SAMPLE_RATE_HZ
            hits = self._lead(self._copier.encode(recording), sentence, voice)
        return SpokenSentence(
            name=sentence.name,
            text=sentence.text,
            speaker=sentence.speaker,
            language=sentence.language,
            voice=VoiceSource(sentence.prompt_kind, tuple(path.name for path in sentence.prompts)),
            codes=sum(piece.codes for piece in speech.pieces),
            is_stopped=not speech.unfinished,
            seconds_to_speak=seconds_to_speak,
            correct_codes=hits.correct if hits else None,
            true_codes=hits.count if hits else None,
            sounds={
                kind: self._hear(number, sentence, kind, recording, *sounds[kind]) for kind in KINDS if kind in sounds
            },
        )

    def _speak(self, sentence: Sentence, voice: Voice) -> tuple[Speech, float]:
        """The speech, and the seconds it took without compiling."""
        for _ in range(2):
            compiled, started = self._synthesizer.traces, time.perf_counter()
            speech = self._synthesizer.speak(sentence.text, voice, sentence.language, self._settings)
            seconds = time.perf_counter() - started
            if self._synthesizer.traces == compiled:
                break
        return speech, seconds

    def _lead(self, codes_M: NDArray[np.int32], sentence: Sentence, voice: Voice) -> CodeHits | None:
        """None where the clip is longer than the model takes in one go."""
        ids = self._synthesizer.tokenizer.encode(sentence.text, sentence.language)
        try:
            return self._teacher.count_hits(codes_M, ids, voice)
        except SequenceTooLongError:
            return None

    def _hear(
        self, number: int, sentence: Sentence, kind: str, recording: NDArray[np.float32], made: NDArray[np.float32],
        rate_hz: int,
    ) -> Heard:  # fmt: skip
        file = f"{SOUNDS_FOLDER}/{number:04d}-{kind}.wav"
        write_wav(self._folder / file, made, rate_hz)
        samples = resample_clip(made, rate_hz, SAMPLE_RATE_HZ)
        heard = self._jury.transcribe(sentence, kind, samples)
        words, characters = (None, None) if heard is None else score_transcript(sentence.text, heard, sentence.language)
        return Heard(
            file=file,
            seconds=len(made) / rate_hz,
            transcript=heard,
            word_errors=words,
            character_errors=characters,
            likeness=self._jury.compare_voice(sentence, kind, samples),
            mel_distance_db=None if kind == ORIGINAL else measure_mel_distance_db(recording, samples),
        )
