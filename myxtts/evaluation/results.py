"""What an evaluation found, as `evaluation.json` has it: the figures of each sentence and of all, a verdict, and both as text.

None is what was not measured."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from myxtts.evaluation.scores import score_transcript
from myxtts.units import format_share

SCHEMA = "myxtts evaluation"
VERSION = 2
"""Raised when a key changes its meaning or goes; new keys do not raise it."""

ORIGINAL, COPY, SPOKEN = "original", "copy", "spoken"
KINDS = (ORIGINAL, COPY, SPOKEN)
"""The recording, the recording through the model's codes and back, and the text spoken anew."""
SENTENCE = "sentence"
"""The `what` of a failure that left nothing of a sentence."""

Figures = dict[str, Any]
"""JSON values by the names they have in the file."""


def make_evaluation(
    facts: Mapping[str, Any],
    sentences: Sequence[Figures],
    failures: Sequence[Figures],
    not_measured: Sequence[Figures],
    set_aside: Mapping[str, Any],
) -> Figures:
    """Everything there is to tell, for people and for programs that compare checkpoints.

    Of each failure there is the `name` of a sentence, `what` could not be had and the `reason`; of each gap in what was measured
    `what`, `why`, and `how` to get it. Clips that were set aside are told as in a drop report.
    """
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **facts,
        "summary": _summarise(sentences, failures),
        "not_measured": not_measured,
        "sentences": sentences,
        "failures": failures,
        "set_aside": set_aside,
    }


def _summarise(sentences: Sequence[Figures], failures: Sequence[Figures]) -> Figures:
    spoken_s = sum(each[SPOKEN]["seconds"] for each in sentences)
    original_s = sum(each[ORIGINAL]["seconds"] for each in sentences)
    true_codes = sum(each["true_codes"] or 0 for each in sentences)
    return {
        **{kind: _summarise_kind([each[kind] for each in sentences if kind in each]) for kind in KINDS},
        # Of the spoken sentences against each other's texts: near 1, or the recogniser tells nothing.
        "word_error_rate_against_wrong_texts": _measure_wrong_texts(sentences),
        # The share of true codes that the GPT predicts when it is led by the ones before.
        "code_accuracy": _divide(sum(each["correct_codes"] or 0 for each in sentences), true_codes),
        # Seconds of computing for a second of speech.
        "real_time_factor": _divide(sum(each["seconds_to_speak"] for each in sentences), spoken_s),
        # Seconds of speech for a second of the recordings.
        "length_ratio": _divide(spoken_s, original_s),
        # Sentences that ran into the length limit.
        "stop_failures": sum(not each["is_stopped"] for each in sentences),
        "sentences": len(sentences),
        "failed": len({failure["name"] for failure in failures if failure["what"] == SENTENCE}),
    }


def _summarise_kind(sounds: Sequence[Figures]) -> Figures:
    likenesses = [sound["likeness"] for sound in sounds if sound["likeness"] is not None]
    own = [each["own"] for each in likenesses if each["own"] is not None]
    others = [each["other"] for each in likenesses if each["other"] is not None]
    nearest = [each["own"] > each["other"] for each in likenesses if None not in (each["own"], each["other"])]
    return {
        "sentences": len(sounds),
        "word_error_rate": _add_errors(sound["word_errors"] for sound in sounds),
        "character_error_rate": _add_errors(sound["character_errors"] for sound in sounds),
        # Cosines, the mean of all.
        "likeness_to_own_speaker": _mean(own),
        "lowest_likeness_to_own_speaker": min(own, default=None),
        "likeness_to_nearest_other_speaker": _mean(others),
        # Of those that can be compared.
        "share_nearest_to_own_speaker": _divide(sum(nearest), len(nearest)),
        "mel_distance_db": _mean(sound["mel_distance_db"] for sound in sounds),
    }


def _measure_wrong_texts(sentences: Sequence[Figures]) -> float | None:
    heard = [each for each in sentences if each[SPOKEN]["transcript"] is not None]
    if len(heard) < 2:
        return None
    return _add_errors(
        score_transcript(other["text"], each[SPOKEN]["transcript"], each["language"])[0]
        for each, other in zip(heard, [*heard[1:], heard[0]], strict=True)
    )


def _add_errors(errors: Iterable[Mapping[str, int] | None]) -> float | None:
    """The rate of all of them together: long sentences weigh more, as is usual. Above 1 where more was added than there was."""
    known = [each for each in errors if each is not None]
    return _divide(sum(each["errors"] for each in known), sum(each["length"] for each in known))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


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


def judge_evaluation(evaluation: Figures) -> str:
    """What limits the speech."""
    summary = evaluation["summary"]
    original, copy, spoken = (summary[kind]["word_error_rate"] for kind in KINDS)
    if spoken is None or original is None:
        return f"No recogniser has listened, so it is not known whether the speech is understood. {_describe_stops(summary)}"
    wrong = summary["word_error_rate_against_wrong_texts"]
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
    if copy is not None and copy - original > min(ACCEPTED_LOSS, loss / 2):
        return (
            f"The codec loses too much: word error rate {copy:.2f} when the recordings only go through its codes and back, "
            f"{original:.2f} before, {spoken:.2f} for speech, which can hardly be better. A codec that is trained here needs more updates "
            "(--codec-steps) or more speech first; one that came with --init-from stays as it is, and does not know these voices."
        )
    culprit, advice = _find_culprit(summary, uses_decoder=evaluation["checkpoint"]["vocoder"] == "decoder")
    return (
        f"{culprit} is at fault: word error rate {spoken:.2f}, where the codec's copies have "
        f"{'an unknown one' if copy is None else f'{copy:.2f}'} and the recordings {original:.2f}. {advice}"
    )


def _find_culprit(summary: Figures, *, uses_decoder: bool) -> tuple[str, str]:
    """Who makes bad speech of a good codec, and what to do."""
    # A wrong length is the GPT's doing whatever makes the sound.
    if summary["stop_failures"] > MANY_STOP_FAILURES * summary["sentences"]:
        return "The GPT", f"{_describe_stops(summary)} Train longer, or try a lower --temperature."
    length, accuracy = summary["length_ratio"], summary["code_accuracy"]
    if length is not None and length < SHORT_SPEECH:
        return "The GPT", f"It stops too early: the speech lasts {length:.0%} of the recordings' time. Train longer."
    if uses_decoder:
        # The copies do not go through the decoder, so they say nothing of it.
        advice = (
            "Evaluate with --vocoder griffin-lim to tell them apart: if that is understood, train the decoder longer."
        )
        return "The GPT or its waveform decoder", advice
    known = f"Led by the true codes it predicts {accuracy:.0%} of them. " if accuracy is not None else ""
    return "The GPT", f"{known}Train longer, or on more speech; --temperature and --repetition-penalty are worth a try."


def _describe_stops(summary: Figures) -> str:
    if not summary["stop_failures"]:
        return "Every sentence came to its end by itself."
    return f"{summary['stop_failures']} of {summary['sentences']} sentences ran into the length limit."


DASH = "–"
KIND_NAMES = {ORIGINAL: "Recording", COPY: "Codec alone", SPOKEN: "Spoken"}
RATE, COSINE, DECIBELS, COUNT = "{:.3f}", "{:.2f}", "{:.1f} dB", "{0[errors]} of {0[length]}"
WIDTH = 80
MOST_FAILURES = 5
_COLUMNS = (
    ("words wrong", RATE, "word_error_rate"),
    ("chars wrong", RATE, "character_error_rate"),
    ("own voice", COSINE, "likeness_to_own_speaker"),
    ("other voice", COSINE, "likeness_to_nearest_other_speaker"),
    ("mel distance", DECIBELS, "mel_distance_db"),
)


def format_figure(form: str, value: Any) -> str:
    """A figure in one of these forms; a dash for what was not measured."""
    return DASH if value is None else form.format(value)


def format_evaluation(evaluation: Figures) -> str:
    """The summary, what is missing from it, and what failed."""
    summary, data, failures = evaluation["summary"], evaluation["data"], evaluation["failures"]
    lines = [
        f"{evaluation['checkpoint']['name']}: {summary['sentences']} sentences of {data['name']} ({data['split']})",
        *textwrap.wrap(evaluation["checkpoint"]["sound"], WIDTH),
        "",
        f"{'':<18}" + "".join(f"{name:>13}" for name, _, _ in _COLUMNS),
    ]
    for kind in KINDS:
        if summary[kind]["sentences"]:
            figures = (format_figure(form, summary[kind][key]) for _, form, key in _COLUMNS)
            lines.append(f"{KIND_NAMES[kind]:<18}" + "".join(f"{figure:>13}" for figure in figures))
    lines += ["", *_list_figures(summary), "", *textwrap.wrap(judge_evaluation(evaluation), WIDTH)]
    for gap in evaluation["not_measured"]:
        told = f"Not measured: {gap['what']}; {gap['why']} {gap['how']}"
        lines += ["", *textwrap.wrap(told, WIDTH, subsequent_indent="  ")]
    if failures:
        lines += ["", f"Could not be had: {len(failures)}"]
        lines += [f"  {each['name']}, {each['what']}: {each['reason']}" for each in failures[:MOST_FAILURES]]
    return "\n".join(lines)


def _list_figures(summary: Figures) -> Iterator[str]:
    yield f"Codes predicted   {format_share(summary['code_accuracy'])} (led by the true ones)"
    if summary["real_time_factor"] is not None:
        yield f"Real-time factor  {summary['real_time_factor']:.2f} s for a second of speech"
    yield f"Did not stop      {summary['stop_failures']} of {summary['sentences']}"
    yield f"Length            {format_share(summary['length_ratio'])} of the recordings' time"
    if summary["failed"]:
        yield f"Left out          {summary['failed']}"
