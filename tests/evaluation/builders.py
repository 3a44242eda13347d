"""Results of evaluations, made up."""

import numpy as np

from myxtts.evaluation import results
from myxtts.evaluation.results import COPY, ORIGINAL, SPOKEN
from myxtts.evaluation.scores import score_transcript
from myxtts.evaluation.sentences import write_wav

TEXTS = ("The cat sat on the mat.", "Nobody knows <why> it rains.", "سلام دنیا")


GAP = {"what": "Whose voice it is", "why": "no speaker judge was asked.", "how": "Give --speaker-judge."}


def make_failure(name="9.wav", reason="silent"):
    return {"name": name, "what": results.SENTENCE, "reason": reason}


def make_sentence(number, heard, folder=None, lengths=None, **more):
    """A sentence of which each kind of sound was heard like this; None where nobody listened."""
    text = TEXTS[number % len(TEXTS)]
    sounds, lengths = {}, lengths or {}
    for kind, transcript in heard.items():
        name = f"wavs/{number:04d}-{kind}.wav"
        if folder is not None:
            (folder / "wavs").mkdir(exist_ok=True)
            write_wav(folder / name, np.random.default_rng(number).normal(0, 0.1, 4000).astype(np.float32), 22050)
        words, characters = (None, None) if transcript is None else score_transcript(text, transcript, "en")
        sounds[kind] = {
            "file": name, "seconds": lengths.get(kind, 2.0), "transcript": transcript, "word_errors": words,
            "character_errors": characters,
            "likeness": {"own": 0.9, "other": 0.5 if kind != SPOKEN else 0.6 + 0.4 * number},
            "mel_distance_db": None if kind == ORIGINAL else {COPY: 3.0, SPOKEN: 5.0}[kind] + number,
        }  # fmt: skip
    values = {
        "name": f"{number}.wav", "text": text, "codes": 40, "is_stopped": True, "seconds_to_speak": 1.0, "correct_codes": 30,
        "true_codes": 40, "speaker": "ana", "language": "en",
        "voice": {"kind": "another clip of the speaker", "recordings": ["other.wav"]},
    }  # fmt: skip
    return {**values, **more, **sounds}


def make_evaluation(sentences, failures=(), not_measured=(), vocoder="griffin-lim", **facts):
    usual = {
        "myxtts": "0",
        "time": "2026-01-01 00:00 UTC",
        "checkpoint": {"name": "mine/step-1", "path": "runs/mine/step-1", "sound": "Sound: rough.", "vocoder": vocoder},
        "data": {"name": "demo", "path": "demo", "split": "all", "clips": 9},
        "judges": {"recogniser": "ears", "speaker_judge": None, "speakers": []},
        "settings": {"seed": 0, "max_codes": None},
    }
    return results.make_evaluation({**usual, **facts}, sentences, failures, not_measured, {"lines": 9})


__all__ = ["COPY", "GAP", "ORIGINAL", "SPOKEN", "TEXTS", "make_evaluation", "make_failure", "make_sentence"]
