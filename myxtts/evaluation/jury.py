"""The judges at work: each sound is written down and its voice compared, as far as there is a judge for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.errors import MyXTTSError
from myxtts.evaluation.errors import JudgeFailedError
from myxtts.evaluation.judges import JUDGE_RATE_HZ, Judge, embed_voice, transcribe
from myxtts.evaluation.likeness import Likeness, Vector, compare_voices
from myxtts.evaluation.results import SPOKEN, FailedFigure
from myxtts.evaluation.sentences import PromptKind, Sentence
from myxtts.evaluation.wav_files import write_wav

_log = logging.getLogger(__name__)

LANGUAGE_OF_OTHERS = "en"
"""Told to a speaker judge that wants a language, of recordings that have none."""


class Jury:
    """Asks the judges.

    Args:
        recogniser: None leaves transcripts out.
        speaker_judge: None leaves voices out.
        folder: where what they hear is written.

    Attributes:
        failures: what could not be had, in the order it happened.
        speakers: the voices that are known.
    """

    def __init__(self, recogniser: Judge | None, speaker_judge: Judge | None, folder: Path):
        self.recogniser, self.speaker_judge = recogniser, speaker_judge
        self.failures: list[FailedFigure] = []
        self.speakers: dict[str, dict[str, Vector]] = {}
        self._wav = folder / "clip.wav"

    def meet_speakers(self, recordings: Mapping[str, Mapping[str, Path]]) -> None:
        """Hears recordings of each speaker, by name; one that cannot be heard is a failure, not an error."""
        if self.speaker_judge is None:
            return
        for speaker, files in recordings.items():
            for name, path in files.items():
                try:
                    wav = self._write(read_clip(path, JUDGE_RATE_HZ))
                    vector = embed_voice(self.speaker_judge, wav, LANGUAGE_OF_OTHERS)
                except MyXTTSError as error:
                    self._note(name, "likeness", error)
                else:
                    self.speakers.setdefault(speaker, {})[name] = vector

    def understands(self, language: str) -> bool:
        """Whether there is a recogniser for a language."""
        judge = self.recogniser
        return judge is not None and (judge.languages is None or language in judge.languages)

    def transcribe(self, sentence: Sentence, kind: str, samples: NDArray[np.float32]) -> str | None:
        """What the recogniser hears; None where there is none for the language, or it failed."""
        if self.recogniser is None or not self.understands(sentence.language):
            return None
        try:
            return transcribe(self.recogniser, self._resample(samples), sentence.language)
        except JudgeFailedError as error:
            self._note(sentence.name, f"transcript of {kind}", error)
            return None

    def compare_voice(self, sentence: Sentence, kind: str, samples: NDArray[np.float32]) -> Likeness | None:
        """Whose voice it is; None where no judge was asked, it failed, or the voice was given and this is a recording."""
        if self.speaker_judge is None or (kind != SPOKEN and sentence.prompt_kind is PromptKind.GIVEN):
            return None
        try:
            vector = embed_voice(self.speaker_judge, self._resample(samples), sentence.language)
        except JudgeFailedError as error:
            self._note(sentence.name, f"likeness of {kind}", error)
            return None
        return compare_voices(self.speakers, vector, sentence.voice_speaker, sentence.name)

    def _resample(self, samples: NDArray[np.float32]) -> Path:
        return self._write(resample_clip(samples, SAMPLE_RATE_HZ, JUDGE_RATE_HZ))

    def _write(self, samples: NDArray[np.float32]) -> Path:
        write_wav(self._wav, samples, JUDGE_RATE_HZ)
        return self._wav

    def _note(self, name: str, what: str, error: MyXTTSError) -> None:
        _log.warning("%s: no %s: %s", name, what, error)
        self.failures.append(FailedFigure(name, what, str(error)))
