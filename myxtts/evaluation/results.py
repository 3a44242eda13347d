"""What an evaluation found, sentence by sentence and all together: figures, a verdict, and both as JSON and as text."""

from __future__ import annotations

import functools
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from myxtts.evaluation.scores import Errors, Likeness, add_errors, score_transcript
from myxtts.units import format_share

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
    """Whether a waveform decoder made the speech, and not Griffin-Lim. The codec's copies never go through it."""

    @functools.cached_property
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
        )


SENTENCE = "sentence"
"""The `what` of a failure that left nothing of a sentence."""


def dump_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Everything as JSON, for programs that compare checkpoints; what was not measured is null."""
    summary = asdict(evaluation.summary)
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


ACCEPTED_LOSS = 0.15
"""A word error rate so much above that of the recordings is still speech that is understood."""
TELLING_RATE = 0.7
"""Below it against wrong texts, a recogniser writes down what fits anything."""
DEAF_RATE = 0.5
"""A recogniser that gets more words of the recordings themselves wrong does not know their language, or their sound."""
MANY_STOP_FAILURES = 0.2
SHORT_SPEECH = 0.6
"""Speech that lasts so much less than the recordings came to an end before its text did."""


def judge_evaluation(evaluation: Evaluation) -> str:
    """What limits the speech."""
    summary = evaluation.summary
    original, copy, spoken = (summary.kinds[kind].word_error_rate for kind in (ORIGINAL, COPY, SPOKEN))
    if spoken is None or original is None:
        return f"No recogniser has listened, so it is not known whether the speech is understood. {_describe_stops(summary)}"
    wrong = summary.word_error_rate_against_wrong_texts
    if wrong is not None and wrong < TELLING_RATE:
        return (
            f"The word error rate tells little: against wrong texts it is {wrong:.2f}, where it should be "
            "near 1. Evaluate more, and more different, sentences."
        )
    if original > DEAF_RATE:
        return (
            f"The recogniser does not understand the recordings themselves: word error rate {original:.2f}. What it says of the "
            f"speech ({spoken:.2f}) tells nothing. Give one that knows their language (--recogniser, --recogniser-command)."
        )
    loss = spoken - original
    if loss <= ACCEPTED_LOSS:
        return f"The speech is understood: word error rate {spoken:.2f}, of the recordings {original:.2f}. {_describe_stops(summary)}"
    if copy is not None and copy - original > loss / 2:
        return (
            f"The codec loses most: word error rate {copy:.2f} when the recordings only go through its codes and back, "
            f"{original:.2f} before, {spoken:.2f} for speech. Train the codec longer first (--codec-steps)."
        )
    culprit, advice = _find_culprit(evaluation)
    return (
        f"{culprit} is at fault: word error rate {spoken:.2f}, where the codec's copies have "
        f"{'an unknown one' if copy is None else f'{copy:.2f}'} and the recordings {original:.2f}. {advice}"
    )


def _find_culprit(evaluation: Evaluation) -> tuple[str, str]:
    """Who makes bad speech of a good codec, and what to do."""
    summary = evaluation.summary
    # A wrong length is the GPT's doing whatever makes the sound.
    if summary.stop_failures > MANY_STOP_FAILURES * summary.sentences:
        return "The GPT", f"{_describe_stops(summary)} Train longer, or try a lower --temperature."
    if summary.length_ratio is not None and summary.length_ratio < SHORT_SPEECH:
        lasts = f"the speech lasts {summary.length_ratio:.0%} of the recordings' time"
        return "The GPT", f"It stops too early: {lasts}. Train longer."
    if evaluation.uses_decoder:
        # The copies do not go through the decoder, so they say nothing of it.
        advice = (
            "Evaluate with --vocoder griffin-lim to tell them apart: if that is understood, train the decoder longer."
        )
        return "The GPT or its waveform decoder", advice
    accuracy = summary.code_accuracy
    known = f"Led by the true codes it predicts {accuracy:.0%} of them. " if accuracy is not None else ""
    return "The GPT", f"{known}Train longer, or on more speech; --temperature and --repetition-penalty are worth a try."


def _describe_stops(summary: Summary) -> str:
    if not summary.stop_failures:
        return "Every sentence came to its end by itself."
    return f"{summary.stop_failures} of {summary.sentences} sentences ran into the length limit."


DASH = "–"
KIND_NAMES = {ORIGINAL: "Recording", COPY: "Codec alone", SPOKEN: "Spoken"}


RATE, COSINE, DECIBELS, COUNT = "{:.3f}", "{:.2f}", "{:.1f} dB", "{0.errors} of {0.length}"


def format_figure(form: str, value: float | Errors | None) -> str:
    """A figure in one of these forms; a dash for what was not measured."""
    return DASH if value is None else form.format(value)


WIDTH = 80
MOST_FAILURES = 5
_COLUMNS = (("words wrong", 12), ("chars wrong", 12), ("own voice", 10), ("other voice", 12), ("mel distance", 13))


def format_evaluation(evaluation: Evaluation) -> str:
    """The summary, what is missing from it, and what failed."""
    summary = evaluation.summary
    facts = evaluation.facts
    lines = [
        f"{facts['checkpoint']['name']}: {summary.sentences} sentences of {facts['data']['name']} ({facts['data']['split']})",
        *textwrap.wrap(facts["checkpoint"]["sound"], WIDTH),
        "",
        f"{'':<18}" + "".join(f"{name:>{width}}" for name, width in _COLUMNS),
        *(_format_kind(KIND_NAMES[kind], figures) for kind, figures in summary.kinds.items() if figures.sentences),
        "",
        *_list_figures(summary),
        "",
        *textwrap.wrap(judge_evaluation(evaluation), WIDTH),
    ]
    for gap in evaluation.not_measured:
        lines += ["", *textwrap.wrap(f"Not measured: {gap.what}; {gap.why} {gap.how}", WIDTH, subsequent_indent="  ")]
    if evaluation.failures:
        lines += ["", f"Could not be had: {len(evaluation.failures)}"]
        lines += [
            f"  {failure.name}, {failure.what}: {failure.reason}" for failure in evaluation.failures[:MOST_FAILURES]
        ]
    return "\n".join(line.rstrip() for line in lines)


def _format_kind(name: str, figures: KindSummary) -> str:
    values = (
        format_figure(RATE, figures.word_error_rate),
        format_figure(RATE, figures.character_error_rate),
        format_figure(COSINE, figures.likeness_to_own_speaker),
        format_figure(COSINE, figures.likeness_to_nearest_other_speaker),
        format_figure(DECIBELS, figures.mel_distance_db),
    )
    return f"{name:<18}" + "".join(f"{value:>{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True))


def _list_figures(summary: Summary) -> Iterator[str]:
    yield f"Codes predicted   {format_share(summary.code_accuracy)} (led by the true ones)"
    if summary.real_time_factor is not None:
        yield f"Real-time factor  {summary.real_time_factor:.2f} s for a second of speech"
    yield f"Did not stop      {summary.stop_failures} of {summary.sentences}"
    yield f"Length            {format_share(summary.length_ratio)} of the recordings' time"
    if summary.failed:
        yield f"Left out          {summary.failed}"
