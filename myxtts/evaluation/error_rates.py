"""Word and character error rates.

An edit distance of a dozen lines, checked against known values, instead of a library: the usual one brings a compiled
package and rules of its own for what is a word, which must be ours here (`scoring_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.evaluation.scoring_text import join_words, split_words


@dataclass(frozen=True)
class Errors:
    """Misheard words or characters, and how many there were to hear."""

    errors: int
    """Replaced, missing and added ones."""
    length: int

    @property
    def rate(self) -> float | None:
        """Above 1 where more was added than there was."""
        return self.errors / self.length if self.length else None


def score_transcript(text: str, heard: str, language: str) -> tuple[Errors, Errors]:
    """The words and the characters that were misheard, after both texts went through `split_words`."""
    said_words, heard_words = split_words(text, language), split_words(heard, language)
    said, misheard = join_words(said_words, language), join_words(heard_words, language)
    return Errors(count_edits(said_words, heard_words), len(said_words)), Errors(count_edits(said, misheard), len(said))


def add_errors(errors: Iterable[Errors]) -> Errors:
    """All of them together: long sentences weigh more, as is usual."""
    listed = list(errors)
    return Errors(sum(each.errors for each in listed), sum(each.length for each in listed))


def count_edits(said: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest replacements, deletions and insertions that turn one into the other."""
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
