"""What an evaluation found, sentence by sentence and all together, and its form as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myxtts.evaluation.error_rates import Errors, TextScore, add_errors, score_transcript
from myxtts.evaluation.likeness import Likeness

SCHEMA = "myxtts evaluation"
VERSION = 2
"""Raised when a key changes its meaning or goes; new keys do not raise it."""

ORIGINAL, COPY, SPOKEN = "original", "copy", "spoken"
KINDS = (ORIGINAL, COPY, SPOKEN)
"""The recording, the recording through the model's codes and back, and the text spoken anew."""


@dataclass(frozen=True)
class Heard:
    """One sound of a sentence, and what the judges said of it. None is what was not measured."""

    file: str
    """Relative to the folder of the evaluation."""
    seconds: float
    transcript: str | None = None
    score: TextScore | None = None
    likeness: Likeness | None = None
    mel_distance_db: float | None = None
    """To the recording."""


@dataclass(frozen=True)
class SpokenSentence:
    """How one sentence went."""

    name: str
    text: str
    speaker: str
    language: str
    prompts: tuple[str, ...]
    prompt_kind: str
    sounds: Mapping[str, Heard]
    """By kind."""
    codes: int
    is_stopped: bool
    """Whether the model came to an end by itself in every piece."""
    seconds_to_speak: float
    """Of computing, compiling left out."""
    correct_codes: int | None = None
    true_codes: int | None = None


@dataclass(frozen=True)
class Failure:
    """A sentence, or a figure of one, that could not be had."""

    name: str
    what: str
    reason: str


@dataclass(frozen=True)
class NotMeasured:
    """A figure that nobody was asked for, or nobody could give."""

    what: str
    why: str
    how: str
    """What to do to get it."""


@dataclass(frozen=True)
class KindSummary:
    """Sounds of one kind together. None is what was not measured."""

    sentences: int
    words: Errors | None
    characters: Errors | None
    likeness: float | None
    """The mean cosine to the own speaker."""
    lowest_likeness: float | None
    other_likeness: float | None
    """The mean cosine to the nearest other speaker."""
    own_nearest: float | None
    """The share that is closer to its own speaker than to any other."""
    mel_distance_db: float | None


@dataclass(frozen=True)
class Summary:
    """The figures of an evaluation."""

    kinds: Mapping[str, KindSummary]
    wrong_text_rate: float | None
    """The word error rate of the spoken sentences against each other's texts: near 1, or the recogniser tells nothing."""
    code_accuracy: float | None
    """The share of true codes that the GPT predicts when it is led by the ones before."""
    real_time_factor: float | None
    """Seconds of computing for a second of speech."""
    length_ratio: float | None
    """Seconds of speech for a second of the recordings."""
    stop_failures: int
    """Sentences that ran into the length limit."""
    sentences: int
    failed: int
    uses_decoder: bool
    """Whether a waveform decoder made the speech. The codec's copies never go through it."""


@dataclass(frozen=True)
class Evaluation:
    """Everything there is to tell."""

    facts: Mapping[str, Any]
    """What was evaluated, with what, when."""
    sentences: Sequence[SpokenSentence]
    failures: Sequence[Failure]
    not_measured: Sequence[NotMeasured]
    set_aside: Mapping[str, Any] = field(default_factory=dict)
    """Clips of the data that cannot be used, as in a drop report."""
    uses_decoder: bool = False
    """Whether a waveform decoder made the speech, and not Griffin-Lim."""

    @property
    def summary(self) -> Summary:
        sentences = self.sentences
        accuracy = [(each.correct_codes, each.true_codes) for each in sentences if each.true_codes is not None]
        spoken_s = sum(each.sounds[SPOKEN].seconds for each in sentences)
        return Summary(
            kinds={
                kind: _summarise([each.sounds[kind] for each in sentences if kind in each.sounds]) for kind in KINDS
            },
            wrong_text_rate=_measure_wrong_texts(sentences),
            code_accuracy=_divide(
                sum(correct or 0 for correct, _ in accuracy), sum(count or 0 for _, count in accuracy)
            ),
            real_time_factor=_divide(sum(each.seconds_to_speak for each in sentences), spoken_s),
            length_ratio=_divide(spoken_s, sum(each.sounds[ORIGINAL].seconds for each in sentences)),
            stop_failures=sum(not each.is_stopped for each in sentences),
            sentences=len(sentences),
            failed=len({failure.name for failure in self.failures if failure.what == SENTENCE}),
            uses_decoder=self.uses_decoder,
        )


SENTENCE = "sentence"
"""The `what` of a failure that left nothing of a sentence."""


def _summarise(sounds: Sequence[Heard]) -> KindSummary:
    scores = [sound.score for sound in sounds if sound.score is not None]
    likenesses = [sound.likeness for sound in sounds if sound.likeness is not None]
    own = [each.own for each in likenesses if each.own is not None]
    nearest = [each.is_own_nearest for each in likenesses if each.is_own_nearest is not None]
    return KindSummary(
        sentences=len(sounds),
        words=add_errors(score.words for score in scores) if scores else None,
        characters=add_errors(score.characters for score in scores) if scores else None,
        likeness=_mean(own),
        lowest_likeness=min(own, default=None),
        other_likeness=_mean(each.other for each in likenesses if each.other is not None),
        own_nearest=_divide(sum(nearest), len(nearest)),
        mel_distance_db=_mean(sound.mel_distance_db for sound in sounds if sound.mel_distance_db is not None),
    )


def _measure_wrong_texts(sentences: Sequence[SpokenSentence]) -> float | None:
    heard = [(each, each.sounds[SPOKEN].transcript) for each in sentences if each.sounds[SPOKEN].transcript is not None]
    if len(heard) < 2:
        return None
    texts = [each.text for each, _ in [*heard[1:], heard[0]]]
    scores = (
        score_transcript(text, transcript or "", each.language)
        for text, (each, transcript) in zip(texts, heard, strict=True)
    )
    return add_errors(score.words for score in scores).rate


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None


def _divide(total: float, count: float) -> float | None:
    return total / count if count else None
