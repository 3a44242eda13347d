"""Results of evaluations, made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from myxtts.evaluation.results import (
    COPY,
    ORIGINAL,
    SPOKEN,
    Evaluation,
    FailedFigure,
    Heard,
    NotMeasured,
    SpokenSentence,
    VoiceSource,
)
from myxtts.evaluation.scores import Likeness, score_transcript
from myxtts.evaluation.sentences import write_wav

TEXTS = ("The cat sat on the mat.", "Nobody knows <why> it rains.", "سلام دنیا")


def make_sentence(
    number: int,
    heard: dict[str, str | None],
    folder: Path | None = None,
    lengths: dict[str, float] | None = None,
    **more,
) -> SpokenSentence:
    """A sentence of which each kind of sound was heard like this; None where nobody listened."""
    text = TEXTS[number % len(TEXTS)]
    sounds, lengths = {}, lengths or {}
    for kind, transcript in heard.items():
        name = f"wavs/{number:04d}-{kind}.wav"
        if folder is not None:
            (folder / "wavs").mkdir(exist_ok=True)
            write_wav(folder / name, np.random.default_rng(number).normal(0, 0.1, 4000).astype(np.float32), 22050)
        words, characters = (None, None) if transcript is None else score_transcript(text, transcript, "en")
        sounds[kind] = Heard(
            file=name,
            seconds=lengths.get(kind, 2.0),
            transcript=transcript,
            word_errors=words,
            character_errors=characters,
            likeness=Likeness(0.9, 0.5 if kind != SPOKEN else 0.6 + 0.4 * number),
            mel_distance_db=None if kind == ORIGINAL else {COPY: 3.0, SPOKEN: 5.0}[kind] + number,
        )
    values = {
        "codes": 40, "is_stopped": True, "seconds_to_speak": 1.0, "correct_codes": 30, "true_codes": 40, "speaker": "ana",
        "language": "en", "voice": VoiceSource("another clip of the speaker", ("other.wav",)),
    }  # fmt: skip
    return SpokenSentence(name=f"{number}.wav", text=text, sounds=sounds, **{**values, **more})


def make_evaluation(sentences, failures=(), not_measured=(), **more) -> Evaluation:
    facts = {
        "myxtts": "0",
        "time": "2026-01-01 00:00 UTC",
        "checkpoint": {"name": "mine/step-1", "path": "runs/mine/step-1", "sound": "Sound: rough."},
        "data": {"name": "demo", "path": "demo", "split": "all", "clips": 9},
        "judges": {"recogniser": "ears", "speaker_judge": None, "speakers": []},
        "settings": {"seed": 0, "max_codes": None},
    }
    return Evaluation(facts, list(sentences), list(failures), list(not_measured), {"lines": 9}, **more)


__all__ = ["COPY", "ORIGINAL", "SPOKEN", "TEXTS", "FailedFigure", "NotMeasured", "make_evaluation", "make_sentence"]
