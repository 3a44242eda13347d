"""The sounds of a sentence: the recording, its copy through the codec, and the text spoken anew."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.evaluation.results import COPY, ORIGINAL, SPOKEN
from myxtts.evaluation.sentences import Sentence
from myxtts.evaluation.wav_files import write_wav
from myxtts.inference.copying import SpeechCopier
from myxtts.inference.settings import SpeechSettings
from myxtts.inference.speech import Speech
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.teacher_forcing import CodeHits, TeacherForcing
from myxtts.inference.voices import Voice
from myxtts.models.sequences import SequenceTooLongError

Samples = NDArray[np.float32]

VOICES_KEPT = 16


@dataclass(frozen=True)
class Sound:
    """A sound, also as a file."""

    file: Path
    samples: Samples
    """At 22.05 kHz, whatever the file's rate."""
    seconds: float


@dataclass(frozen=True)
class MadeSentence:
    """What the model made of a sentence."""

    sounds: Mapping[str, Sound]
    """By kind. Without a codec there is no copy."""
    speech: Speech
    seconds_to_speak: float
    hits: CodeHits | None
    """None without a codec, or where the clip is longer than the model takes in one go."""


class SoundMaker:
    """Makes sounds with a model.

    Args:
        synthesizer: the model.
        settings: how it speaks.
        folder: where the sound files go.
    """

    def __init__(self, synthesizer: Synthesizer, settings: SpeechSettings, folder: Path):
        self._synthesizer, self._settings, self._folder = synthesizer, settings, folder
        self._teacher = TeacherForcing(synthesizer.xtts)
        self._copier = None if synthesizer.xtts.dvae is None else SpeechCopier(synthesizer.xtts)
        self._clone = lru_cache(VOICES_KEPT)(self._clone_voice)
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, number: int, sentence: Sentence) -> MadeSentence:
        """The sounds of a sentence. Raises an error of ours where a recording or the text cannot be used."""
        recording = read_clip(sentence.file)
        voice = self._clone(sentence.prompts)
        speech, seconds = self._speak(sentence, voice)
        sounds = {
            ORIGINAL: self._keep(number, ORIGINAL, recording, SAMPLE_RATE_HZ),
            SPOKEN: self._keep(number, SPOKEN, speech.samples, speech.rate_hz),
        }
        hits = None
        if self._copier is not None:
            sounds[COPY] = self._keep(number, COPY, self._copier.copy(recording), SAMPLE_RATE_HZ)
            hits = self._lead(self._copier.encode(recording), sentence, voice)
        return MadeSentence(sounds, speech, seconds, hits)

    def _clone_voice(self, prompts: tuple[Path, ...]) -> Voice:
        return self._synthesizer.clone_voice(prompts)

    def _speak(self, sentence: Sentence, voice: Voice) -> tuple[Speech, float]:
        """The speech, and the seconds it took without compiling."""
        compiled = self._synthesizer.traces
        speech, seconds = self._time_speech(sentence, voice)
        if self._synthesizer.traces != compiled:
            speech, seconds = self._time_speech(sentence, voice)
        return speech, seconds

    def _time_speech(self, sentence: Sentence, voice: Voice) -> tuple[Speech, float]:
        started = time.perf_counter()
        speech = self._synthesizer.speak(sentence.text, voice, sentence.language, self._settings)
        return speech, time.perf_counter() - started

    def _lead(self, codes_M: NDArray[np.int32], sentence: Sentence, voice: Voice) -> CodeHits | None:
        ids = self._synthesizer.tokenizer.encode(sentence.text, sentence.language)
        try:
            return self._teacher.count_hits(codes_M, ids, voice)
        except SequenceTooLongError:
            return None

    def _keep(self, number: int, kind: str, samples: Samples, rate_hz: int) -> Sound:
        path = self._folder / f"{number:04d}-{kind}.wav"
        write_wav(path, samples, rate_hz)
        return Sound(path, resample_clip(samples, rate_hz, SAMPLE_RATE_HZ), len(samples) / rate_hz)
