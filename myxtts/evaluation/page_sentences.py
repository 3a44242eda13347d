"""A sentence on the page: its text, and each sound with player, spectrogram and what was heard."""

from __future__ import annotations

import difflib
from html import escape
from pathlib import Path

from myxtts.evaluation.results import KINDS, Heard, SpokenSentence
from myxtts.evaluation.scoring_text import split_words
from myxtts.evaluation.words import DASH, KIND_NAMES, format_decibels, format_errors
from myxtts.monitoring.embedding import embed_file
from myxtts.monitoring.words import format_share

SENTENCE_STYLE = """
body { max-width: 62rem; } .wide { overflow-x: auto; } .wide th, .wide .number { white-space: nowrap; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); } bdi { unicode-bidi: isolate; }
article { margin: 1.6rem 0 2.2rem; } article > p { color: var(--soft); font-size: .85rem; margin: .2rem 0 .6rem; }
.sounds { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: .6rem; } .sounds figure.sound { margin: 0; }
.sounds figure.sound figcaption { flex-direction: column; justify-content: flex-start; gap: 0; min-height: 4.2rem; }
.heard { font-size: .9rem; margin: .4rem 0 0; } mark { background: none; color: var(--c4); font-weight: 600; }
"""


def draw_sentence(number: int, sentence: SpokenSentence, folder: Path) -> str:
    """The card of a sentence.

    Args:
        folder: that the sound files' names are relative to.
    """
    sounds = "".join(
        _draw_sound(kind, sentence.sounds[kind], sentence, folder) for kind in KINDS if kind in sentence.sounds
    )
    return (
        f'<article id="s{number}"><blockquote dir="auto">{number}. {escape(sentence.text)}</blockquote>'
        f'<p>{escape(_describe(sentence))}</p><div class="sounds">{sounds}</div></article>'
    )


def mark_misheard(text: str, heard: str, language: str) -> str:
    """What was heard, as HTML, with the words that are not in the text marked and those that are missing in brackets."""
    said, found = split_words(text, language), split_words(heard, language)
    parts: list[str] = []
    for kind, first, last, heard_first, heard_last in difflib.SequenceMatcher(None, said, found, False).get_opcodes():
        words = escape(" ".join(found[heard_first:heard_last]))
        if kind == "equal":
            parts.append(words)
        elif words:
            parts.append(f"<mark>{words}</mark>")
        else:
            parts.append(f"<mark>[{escape(' '.join(said[first:last]))}]</mark>")
    return " ".join(parts)


def _describe(sentence: SpokenSentence) -> str:
    accuracy = (
        sentence.correct_codes / sentence.true_codes
        if sentence.true_codes and sentence.correct_codes is not None
        else None
    )
    parts = [
        sentence.name,
        *([f"speaker {sentence.speaker}"] if sentence.speaker else []),
        sentence.language,
        f"voice from {', '.join(sentence.prompts)} ({sentence.prompt_kind})",
        *([f"{format_share(accuracy)} of the true codes predicted"] if accuracy is not None else []),
        f"{sentence.codes} codes in {sentence.seconds_to_speak:.1f} s",
        *([] if sentence.is_stopped else ["did not come to an end"]),
    ]
    return " · ".join(parts)


def _draw_sound(kind: str, sound: Heard, sentence: SpokenSentence, folder: Path) -> str:
    label = KIND_NAMES[kind]
    figures = [
        *([f"{format_errors(sound.score.words)} words wrong"] if sound.score else []),
        *([f"voice {sound.likeness.own:.2f}"] if sound.likeness and sound.likeness.own is not None else []),
        *([format_decibels(sound.mel_distance_db)] if sound.mel_distance_db is not None else []),
        f"{sound.seconds:.1f} s",
    ]
    heard = ""
    if sound.transcript is not None:
        marked = mark_misheard(sentence.text, sound.transcript, sentence.language) or DASH
        heard = f'<p class="heard" dir="auto">{marked}</p>'
    return (
        f'<figure class="sound"><figcaption><b>{label}</b><span>{escape(" · ".join(figures))}</span></figcaption>'
        f"{embed_file(folder / sound.file, label)}{heard}</figure>"
    )
