"""An evaluation as one page, with its sounds and pictures inside."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from myxtts.evaluation import results as words
from myxtts.evaluation.results import KINDS, Figures, judge_evaluation
from myxtts.evaluation.scores import split_words
from myxtts.monitoring.metrics import Row
from myxtts.reports.pages import draw_losses, embed_file, render_page

MOST_PLAYED = 30
"""Sentences with players: more make a page that no browser likes to open. The files of all are beside it."""


def format_page(evaluation: Figures, folder: Path, rows: Sequence[Row] = ()) -> str:
    """The page of an evaluation whose sound files are in a folder, with the losses of the training run where there are rows of it."""
    return render_page(
        "evaluation.html",
        title=f"Evaluation of {evaluation['checkpoint']['name']}",
        evaluation=evaluation,
        summary=evaluation["summary"],
        verdict=judge_evaluation(evaluation),
        words=words,
        kinds=KINDS,
        losses=draw_losses(rows) if rows else Markup(),
        most_played=MOST_PLAYED,
        embed=lambda file, label: embed_file(folder / file, label),
        list_misheard=list_misheard,
    )


def list_misheard(text: str, heard: str, language: str) -> list[tuple[str, bool]]:
    """What was heard, in stretches of words, and of each whether it is wrong; words that are missing stand in brackets."""
    said, found = split_words(text, language), split_words(heard, language)
    stretches: list[tuple[str, bool]] = []
    for kind, first, last, heard_first, heard_last in difflib.SequenceMatcher(None, said, found, False).get_opcodes():
        stretch = " ".join(found[heard_first:heard_last]) or f"[{' '.join(said[first:last])}]"
        stretches.append((stretch, kind != "equal"))
    return stretches
