"""How well a sentence was said: error rates of words and characters, likeness of the voice, distance of the mels."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.filterbanks import compute_log_mel
from myxtts.text.normalise import expand_text, resolve_language

_UNPARTED = frozenset({"zh-cn", "ja"})
_WITHOUT_VOWEL_SIGNS = frozenset({"ar", "fa"})
_APOSTROPHES = "'’ʼ‘`´"


def split_words(text: str, language: str) -> list[str]:
    """The words of a text that count when it is compared with another."""
    code = resolve_language(language)
    expanded = unicodedata.normalize("NFKC", expand_text(text, code)).casefold()
    kept = "".join(_keep(character, code) for character in expanded)
    return [character for character in kept if character != " "] if code in _UNPARTED else kept.split()


def is_written_in_one(language: str) -> bool:
    """Whether no spaces part the words of a language: each character counts as one then."""
    return resolve_language(language) in _UNPARTED


def join_words(words: list[str], language: str) -> str:
    """The characters that count."""
    return ("" if is_written_in_one(language) else " ").join(words)


def _keep(character: str, code: str) -> str:
    """The character itself, nothing, or a space."""
    category = unicodedata.category(character)
    # The half-space is a format character.
    if character in _APOSTROPHES or category == "Cf" or (category == "Mn" and code in _WITHOUT_VOWEL_SIGNS):
        return ""
    # Marks belong to letters: Hindi writes its vowels so.
    return character if category[0] in "LMN" else " "


Errors = dict[str, int]
"""Misheard words or characters, replaced, missing and added ones together, as `errors`; of how many, as `length`."""


def score_transcript(text: str, heard: str, language: str) -> tuple[Errors, Errors]:
    """The words and the characters that were misheard, after both texts went through `split_words`."""
    words = split_words(text, language), split_words(heard, language)
    characters = join_words(words[0], language), join_words(words[1], language)
    word_errors, character_errors = (
        {"errors": count_edits(said, misheard), "length": len(said)} for said, misheard in (words, characters)
    )
    return word_errors, character_errors


def count_edits(said: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest replacements, deletions and insertions that turn one into the other."""
    # Own, because the usual library has rules of its own for what is a word, which must be those of `split_words`.
    numbers: dict[str, int] = {}
    heard_N = np.array([numbers.setdefault(token, len(numbers)) for token in heard], np.int64)
    places = np.arange(len(heard) + 1)
    row = places.copy()
    for token in said:
        replaced = row[:-1] + (heard_N != numbers.get(token, -1))
        best = np.concatenate([row[:1] + 1, np.minimum(replaced, row[1:] + 1)])
        # Insertions run along the row: the best start so far, and one for each place since.
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


Vector = NDArray[np.float64]
Voices = Mapping[str, Mapping[str, Vector]]
"""Speaker -> name of a recording -> its voice, of length 1."""


def compare_voices(voices: Voices, vector: Vector, speaker: str, recording: str) -> dict[str, float | None]:
    """How alike a clip's voice is to its `own` speaker, and to the nearest `other`; cosines from -1 to 1, None where there is nobody.

    Its own recording is left out: the same words would flatter it.
    """
    own = [voice for name, voice in voices.get(speaker, {}).items() if name != recording]
    others = [[*clips.values()] for name, clips in voices.items() if name != speaker]

    def measure_cosine(clips: list[Vector]) -> float:
        centroid = np.mean(clips, axis=0)
        return float(vector @ centroid / max(float(np.linalg.norm(centroid)), 1e-12))

    return {"own": measure_cosine(own) if own else None, "other": max(map(measure_cosine, others), default=None)}


COEFFICIENTS = 14
"""Level and shape: enough for the mouth, too few for the pitch. Without the level a pause is like noise, both being flat."""

LEVEL = 0.05
"""Root mean square that every clip is brought to: what lies below the floor of silence would else depend on its loudness."""

UNPAIRED_FRAME_DB = 15.0
"""Added for a frame that only one clip goes on by: about the distance of other words. Leaving words out is as bad as saying others."""

_DECIBELS = 10.0 / np.log(10.0)


def measure_mel_distance_db(recording_S: NDArray[np.float32], clip_S: NDArray[np.float32]) -> float:
    """The distance of a clip from a recording, both at 22.05 kHz, by the recording's frames along the best alignment."""
    recording_FC, clip_GC = compute_cepstra_db(recording_S), compute_cepstra_db(clip_S)
    squares_FG = np.square(recording_FC).sum(1)[:, None] + np.square(clip_GC).sum(1) - 2 * recording_FC @ clip_GC.T
    return sum_alignment(np.sqrt(np.maximum(squares_FG, 0.0)), UNPAIRED_FRAME_DB) / len(recording_FC)


def compute_cepstra_db(samples_S: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cepstra (F, C) whose Euclidean distance is the root mean square difference of spectra in dB."""
    level = float(np.sqrt(np.mean(np.square(samples_S, dtype=np.float64))))
    mel_FM = compute_log_mel(samples_S * np.float32(LEVEL / max(level, LEVEL * 1e-3))).astype(np.float64)
    bands = mel_FM.shape[1]
    orders, places = np.arange(COEFFICIENTS), np.arange(bands) + 0.5
    cosines_MC = np.sqrt(np.where(orders, 2.0, 1.0) / bands) * np.cos(np.pi / bands * places[:, None] * orders)
    return np.asarray(_DECIBELS / np.sqrt(bands) * (mel_FM @ cosines_MC))


def sum_alignment(distances_FG: NDArray[np.float64], price: float) -> float:
    """The lowest sum of distances from corner to corner; a step that goes on in one clip alone costs `price` more.

    A sum and no mean over the path: a mean falls with every cheap step that is added, and rewards a clip that runs on.
    Computed along the diagonals, whose cells depend on those of the two before alone.
    """
    rows, columns = distances_FG.shape
    # Indexed by row + 1: the first entry stands for a row that is not there.
    before, last, now = (np.full(rows + 1, np.inf) for _ in range(3))
    now[1] = distances_FG[0, 0]
    for diagonal in range(1, rows + columns - 1):
        here = np.arange(max(0, diagonal - columns + 1), min(rows - 1, diagonal) + 1)
        before, last, now = last, now, np.full(rows + 1, np.inf)
        alone = np.minimum(last[here], last[here + 1]) + price
        now[here + 1] = np.minimum(before[here], alone) + distances_FG[here, diagonal - here]
    return float(now[rows])
