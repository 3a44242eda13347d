"""An evaluation as one page, with its sounds and pictures inside."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from myxtts.evaluation import results as words
from myxtts.evaluation.results import KINDS, Evaluation, SpokenSentence, judge_summary
from myxtts.evaluation.scores import split_words
from myxtts.monitoring.metrics import Row
from myxtts.reports.pages import draw_losses, embed_file, render_page
from myxtts.units import format_share

MOST_PLAYED = 30
"""Sentences with players: more make a page that no browser likes to open. The files of all are beside it."""


def format_page(evaluation: Evaluation, folder: Path, rows: Sequence[Row] = ()) -> str:
    """The page.

    Args:
        folder: of the evaluation, where the sound files are.
        rows: of the training run's metrics file, where there is one.
    """
    summary = evaluation.summary
    return render_page(
        "evaluation.html",
        title=f"Evaluation of {evaluation.facts['checkpoint']['name']}",
        evaluation=evaluation,
        facts=evaluation.facts,
        summary=summary,
        verdict=judge_summary(summary),
        words=words,
        kinds=KINDS,
        losses=draw_losses(rows) if rows else Markup(),
        most_played=MOST_PLAYED,
        played=[
            (sentence, _describe_sentence(sentence), _list_sounds(sentence, folder))
            for sentence in evaluation.sentences[:MOST_PLAYED]
        ],
    )


def list_misheard(text: str, heard: str, language: str) -> list[tuple[str, bool]]:
    """What was heard, in stretches of words, and of each whether it is wrong; words that are missing stand in brackets."""
    said, found = split_words(text, language), split_words(heard, language)
    stretches: list[tuple[str, bool]] = []
    for kind, first, last, heard_first, heard_last in difflib.SequenceMatcher(None, said, found, False).get_opcodes():
        stretch = " ".join(found[heard_first:heard_last]) or f"[{' '.join(said[first:last])}]"
        stretches.append((stretch, kind != "equal"))
    return stretches


def _describe_sentence(sentence: SpokenSentence) -> list[str]:
    correct, count = sentence.correct_codes, sentence.true_codes
    return [
        sentence.name,
        *([f"speaker {sentence.speaker}"] if sentence.speaker else []),
        sentence.language,
        f"voice from {', '.join(sentence.voice.recordings)} ({sentence.voice.kind})",
        *([f"{format_share(correct / count)} of the true codes predicted"] if count and correct is not None else []),
        f"{sentence.codes} codes in {sentence.seconds_to_speak:.1f} s",
        *([] if sentence.is_stopped else ["did not come to an end"]),
    ]


def _list_sounds(
    sentence: SpokenSentence, folder: Path
) -> list[tuple[str, list[str], Markup, list[tuple[str, bool]] | None]]:
    """Of every sound its name, its figures, a player, and what was heard, where somebody listened."""
    listed = []
    for kind in KINDS:
        if (sound := sentence.sounds.get(kind)) is None:
            continue
        figures = [
            *([f"{words.format_errors(sound.word_errors)} words wrong"] if sound.word_errors else []),
            *([f"voice {sound.likeness.own:.2f}"] if sound.likeness and sound.likeness.own is not None else []),
            *([words.format_decibels(sound.mel_distance_db)] if sound.mel_distance_db is not None else []),
            f"{sound.seconds:.1f} s",
        ]
        heard = None
        if sound.transcript is not None:
            heard = list_misheard(sentence.text, sound.transcript, sentence.language)
        label = words.KIND_NAMES[kind]
        listed.append((label, figures, embed_file(folder / sound.file, label), heard))
    return listed
