"""An evaluation as one self-contained HTML page: no script, no address, sounds and pictures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from myxtts.evaluation.page_sentences import SENTENCE_STYLE, draw_sentence
from myxtts.evaluation.results import COPY, ORIGINAL, SPOKEN, Evaluation, KindSummary, SpokenSentence, Summary
from myxtts.evaluation.verdict import judge_summary
from myxtts.evaluation.words import KIND_NAMES, format_cosine, format_decibels, format_errors, format_rate
from myxtts.monitoring.embedding import SOUND_STYLE
from myxtts.monitoring.html_table import draw_table, draw_tiles
from myxtts.monitoring.loss_curve import draw_losses
from myxtts.monitoring.metrics_rows import Row
from myxtts.monitoring.page_style import STYLE
from myxtts.monitoring.words import UNKNOWN, format_share

MOST_PLAYED = 30
"""Sentences with players: more make a page that no browser likes to open. The files of all are beside it."""


def format_page(evaluation: Evaluation, folder: Path, rows: Sequence[Row] = ()) -> str:
    """The page.

    Args:
        folder: of the evaluation, where the sound files are.
        rows: of the training run's metrics file, where there is one.
    """
    summary = evaluation.summary
    title = f"Evaluation of {evaluation.facts['checkpoint']['name']}"
    sections = [
        ("In figures", _draw_kinds(summary)),
        ("Not measured", _draw_not_measured(evaluation)),
        ("Sentence by sentence", _draw_table_of_sentences(evaluation.sentences)),
        ("Could not be had", _draw_failures(evaluation)),
        ("Training", draw_losses(rows) if rows else ""),
        ("Listen", _draw_sentences(evaluation.sentences, folder)),
        ("How it was measured", _draw_facts(evaluation.facts)),
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_describe(evaluation, summary)}</p>",
        f'<p class="verdict">{escape(judge_summary(summary))}</p>',
        _draw_tiles(summary),
        *(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content),
    ]
    style = STYLE + SOUND_STYLE + SENTENCE_STYLE
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _describe(evaluation: Evaluation, summary: Summary) -> str:
    facts = evaluation.facts
    failed = f", {summary.failed} left out" if summary.failed else ""
    return escape(
        f"{summary.sentences} sentences of {facts['data']['name']} ({facts['data']['split']}){failed}; {facts['time']}. "
        f"{facts['checkpoint']['sound']}"
    )


def _draw_tiles(summary: Summary) -> str:
    spoken, original = summary.kinds[SPOKEN], summary.kinds[ORIGINAL]
    tiles = [
        ("word error rate", format_rate(spoken.words), f"recordings {format_rate(original.words)}"),
        ("voice", format_cosine(spoken.likeness), f"cosine; recordings {format_cosine(original.likeness)}"),
        ("mel distance", format_decibels(spoken.mel_distance_db), f"codec alone {format_decibels(summary.kinds[COPY].mel_distance_db)}"),
        ("codes predicted", format_share(summary.code_accuracy), "led by the true ones"),
        ("real-time factor", _format_factor(summary.real_time_factor), "s for a second of speech"),
        ("did not stop", f"{summary.stop_failures} of {summary.sentences}", f"lasts {format_share(summary.length_ratio)} of the recordings' time"),
    ]  # fmt: skip
    return draw_tiles(tiles)


def _draw_kinds(summary: Summary) -> str:
    header = ("", "Word errors", "Character errors", "Own voice", "Nearest other", "Own is nearest", "Mel distance")
    rows = [(KIND_NAMES[kind], *_list_figures(figures)) for kind, figures in summary.kinds.items() if figures.sentences]
    wrong = (
        f"<p>Against each other's texts the spoken sentences have a word error rate of {summary.wrong_text_rate:.2f}; near 1 "
        "means that the recogniser writes down what it hears.</p>"
        if summary.wrong_text_rate is not None
        else ""
    )
    return _draw_table(header, rows) + wrong


def _list_figures(figures: KindSummary) -> tuple[str, ...]:
    return (
        format_rate(figures.words),
        format_rate(figures.characters),
        format_cosine(figures.likeness),
        format_cosine(figures.other_likeness),
        format_share(figures.own_nearest),
        format_decibels(figures.mel_distance_db),
    )


def _draw_table_of_sentences(sentences: Sequence[SpokenSentence]) -> str:
    header = ("Sentence", "Recording", "Codec", "Spoken", "Mel distance", "Voice", "Seconds")
    rows = [_list_sentence(number, sentence) for number, sentence in enumerate(sentences, start=1)]
    return "<p>Misheard words of all words.</p>" + _draw_table(header, rows)


def _list_sentence(number: int, sentence: SpokenSentence) -> tuple[str, ...]:
    spoken = sentence.sounds[SPOKEN]
    link = f'<a href="#s{number}">{number}</a>' if number <= MOST_PLAYED else f"{number}"
    stop = "" if sentence.is_stopped else ' <span class="unknown">did not stop</span>'
    heard = [sentence.sounds.get(kind) for kind in (ORIGINAL, COPY, SPOKEN)]
    scores = (format_errors(sound.score.words if sound and sound.score else None) for sound in heard)
    return (
        f"{link} <bdi>{escape(sentence.text)}</bdi>{stop}",
        *scores,
        format_decibels(spoken.mel_distance_db),
        format_cosine(spoken.likeness.own if spoken.likeness else None),
        f"{spoken.seconds:.1f}",
    )


def _draw_not_measured(evaluation: Evaluation) -> str:
    return "".join(
        f"<p><b>{escape(each.what)}</b>: {escape(each.why)} {escape(each.how)}</p>" for each in evaluation.not_measured
    )


def _draw_failures(evaluation: Evaluation) -> str:
    if not evaluation.failures:
        return ""
    cells = "".join(
        f'<tr><td class="text">{escape(failure.name)}</td><td>{escape(failure.what)}</td><td class="text">{escape(failure.reason)}</td></tr>'
        for failure in evaluation.failures
    )
    return f"<table><tr><th>Clip</th><th>What</th><th>Why</th></tr>{cells}</table>"


def _draw_sentences(sentences: Sequence[SpokenSentence], folder: Path) -> str:
    cards = [draw_sentence(number, each, folder) for number, each in enumerate(sentences[:MOST_PLAYED], start=1)]
    more = len(sentences) - MOST_PLAYED
    return "\n".join(cards) + (f"<p>The sounds of {more} more are beside this page.</p>" if more > 0 else "")


def _draw_facts(facts: Mapping[str, Any]) -> str:
    judges = facts["judges"]
    lines = [
        f"Recogniser: {judges['recogniser'] or 'none'}. Texts are compared without case and punctuation, numbers in words.",
        f"Speaker judge: {judges['speaker_judge'] or 'none'}; cosine to the mean of the speaker's other recordings.",
        "Mel distance: mel cepstra aligned in time, every frame too many or too few paid for; compare it with the codec's copy of the same recordings only.",
        f"Settings: {', '.join(f'{name} {value}' for name, value in facts['settings'].items() if value is not None)}.",
    ]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f'<div class="wide">{draw_table(header, rows)}</div>'


def _format_factor(factor: float | None) -> str:
    return UNKNOWN if factor is None else f"{factor:.2f}"
