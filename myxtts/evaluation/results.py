"""What an evaluation found, sentence by sentence and all together, and its form as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from myxtts.evaluation.error_rates import Errors, add_errors, score_transcript
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
    word_errors: Errors | None = None
    character_errors: Errors | None = None
    likeness: Likeness | None = None
    mel_distance_db: float | None = None
    """To the recording."""


@dataclass(frozen=True)
class VoiceSource:
    """Where a sentence's voice comes from."""

    kind: str
    recordings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SpokenSentence:
    """How one sentence went."""

    name: str
    text: str
    speaker: str
    language: str
    voice: VoiceSource
    codes: int
    is_stopped: bool
    """Whether the model came to an end by itself in every piece."""
    seconds_to_speak: float
    """Of computing, compiling left out."""
    correct_codes: int | None = None
    true_codes: int | None = None
    sounds: Mapping[str, Heard]
    """By kind. Without a codec there is no copy."""


@dataclass(frozen=True)
class FailedFigure:
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
    word_error_rate: float | None
    character_error_rate: float | None
    likeness_to_own_speaker: float | None
    """The mean cosine."""
    lowest_likeness_to_own_speaker: float | None
    likeness_to_nearest_other_speaker: float | None
    """The mean cosine."""
    share_nearest_to_own_speaker: float | None
    """Of those that can be compared."""
    mel_distance_db: float | None


@dataclass(frozen=True)
class Summary:
    """The figures of an evaluation."""

    kinds: Mapping[str, KindSummary]
    word_error_rate_against_wrong_texts: float | None
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
    failures: Sequence[FailedFigure]
    not_measured: Sequence[NotMeasured]
    set_aside: Mapping[str, Any] = field(default_factory=dict)
    """Clips of the data that cannot be used, as in a drop report."""
    uses_decoder: bool = False
    """Whether a waveform decoder made the speech, and not Griffin-Lim."""

    @property
    def summary(self) -> Summary:
        sentences = self.sentences
        spoken_s = sum(each.sounds[SPOKEN].seconds for each in sentences)
        return Summary(
            kinds={
                kind: _summarise([each.sounds[kind] for each in sentences if kind in each.sounds]) for kind in KINDS
            },
            word_error_rate_against_wrong_texts=_measure_wrong_texts(sentences),
            code_accuracy=_divide(
                sum(each.correct_codes or 0 for each in sentences), sum(each.true_codes or 0 for each in sentences)
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


def dump_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Everything as JSON, for programs that compare checkpoints; what was not measured is null."""
    summary = asdict(evaluation.summary)
    del summary["uses_decoder"]
    sentences = []
    for each in evaluation.sentences:
        sentence = asdict(each)
        sounds = sentence.pop("sounds")
        sentences.append({**sentence, **sounds})
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **evaluation.facts,
        "summary": {**summary.pop("kinds"), **summary},
        "not_measured": [asdict(each) for each in evaluation.not_measured],
        "sentences": sentences,
        "failures": [asdict(failure) for failure in evaluation.failures],
        "set_aside": dict(evaluation.set_aside),
    }


def _summarise(sounds: Sequence[Heard]) -> KindSummary:
    words = [sound.word_errors for sound in sounds if sound.word_errors is not None]
    characters = [sound.character_errors for sound in sounds if sound.character_errors is not None]
    likenesses = [sound.likeness for sound in sounds if sound.likeness is not None]
    own = [each.own for each in likenesses if each.own is not None]
    nearest = [each.is_own_nearest for each in likenesses if each.is_own_nearest is not None]
    return KindSummary(
        sentences=len(sounds),
        word_error_rate=add_errors(words).rate,
        character_error_rate=add_errors(characters).rate,
        likeness_to_own_speaker=_mean(own),
        lowest_likeness_to_own_speaker=min(own, default=None),
        likeness_to_nearest_other_speaker=_mean(each.other for each in likenesses if each.other is not None),
        share_nearest_to_own_speaker=_divide(sum(nearest), len(nearest)),
        mel_distance_db=_mean(sound.mel_distance_db for sound in sounds if sound.mel_distance_db is not None),
    )


def _measure_wrong_texts(sentences: Sequence[SpokenSentence]) -> float | None:
    heard = [(each, transcript) for each in sentences if (transcript := each.sounds[SPOKEN].transcript) is not None]
    if len(heard) < 2:
        return None
    texts = [each.text for each, _ in [*heard[1:], heard[0]]]
    scores = [
        score_transcript(text, transcript, each.language) for text, (each, transcript) in zip(texts, heard, strict=True)
    ]
    return add_errors(words for words, _ in scores).rate


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None


def _divide(total: float, count: float) -> float | None:
    return total / count if count else None
