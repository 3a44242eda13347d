"""The figures of an evaluation in a sentence: who is at fault, and what to try first."""

from __future__ import annotations

from myxtts.evaluation.results import COPY, ORIGINAL, SPOKEN, Summary

ACCEPTED_LOSS = 0.15
"""A word error rate so much above that of the recordings is still speech that is understood."""
TELLING_RATE = 0.7
"""Below it against wrong texts, a recogniser writes down what fits anything."""
DEAF_RATE = 0.5
"""A recogniser that gets more words of the recordings themselves wrong does not know their language, or their sound."""
MANY_STOP_FAILURES = 0.2
SHORT_SPEECH = 0.6
"""Speech that lasts so much less than the recordings came to an end before its text did."""


def judge_summary(summary: Summary) -> str:
    """What limits the speech."""
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
    culprit, advice = _find_culprit(summary)
    return (
        f"{culprit} is at fault: word error rate {spoken:.2f}, where the codec's copies have "
        f"{'an unknown one' if copy is None else f'{copy:.2f}'} and the recordings {original:.2f}. {advice}"
    )


def _find_culprit(summary: Summary) -> tuple[str, str]:
    """Who makes bad speech of a good codec, and what to do."""
    wrong_length = _describe_length(summary)
    if wrong_length is not None:
        return "The GPT", wrong_length
    if summary.uses_decoder:
        # The copies do not go through the decoder, so they say nothing of it.
        advice = (
            "Evaluate with --vocoder griffin-lim to tell them apart: if that is understood, train the decoder longer."
        )
        return "The GPT or its waveform decoder", advice
    accuracy = summary.code_accuracy
    known = f"Led by the true codes it predicts {accuracy:.0%} of them. " if accuracy is not None else ""
    return "The GPT", f"{known}Train longer, or on more speech; --temperature and --repetition-penalty are worth a try."


def _describe_length(summary: Summary) -> str | None:
    """What is wrong with the length of the speech, which is the GPT's doing whatever makes the sound."""
    if summary.stop_failures > MANY_STOP_FAILURES * summary.sentences:
        return f"{_describe_stops(summary)} Train longer, or try a lower --temperature."
    if summary.length_ratio is not None and summary.length_ratio < SHORT_SPEECH:
        return f"It stops too early: the speech lasts {summary.length_ratio:.0%} of the recordings' time. Train longer."
    return None


def _describe_stops(summary: Summary) -> str:
    if not summary.stop_failures:
        return "Every sentence came to its end by itself."
    return f"{summary.stop_failures} of {summary.sentences} sentences ran into the length limit."
