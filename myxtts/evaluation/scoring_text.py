"""Texts as they are compared: what a speaker cannot be heard to do differently is taken away on both sides.

Numbers, signs and abbreviations become words, as the model reads them; then case, punctuation and apostrophes go.
Persian letters get one spelling, and a half-space, a space before a suffix, and neither are the same. Chinese and Japanese,
which part no words, are compared character by character.
"""

from __future__ import annotations

import unicodedata

from myxtts.text.languages import resolve_language
from myxtts.text.normalise import expand_text

_UNPARTED = frozenset({"zh-cn", "ja"})
_WITHOUT_VOWEL_SIGNS = frozenset({"ar", "fa"})
_APOSTROPHES = "'’ʼ‘`´"


def split_words(text: str, language: str) -> list[str]:
    """The words of a text that count when it is compared with another."""
    code = resolve_language(language)
    expanded = unicodedata.normalize("NFKC", expand_text(text, code)).casefold()
    kept = "".join(_keep(character, code) for character in expanded)
    return [character for character in kept if character != " "] if code in _UNPARTED else kept.split()


def join_words(words: list[str], language: str) -> str:
    """The characters that count."""
    return ("" if resolve_language(language) in _UNPARTED else " ").join(words)


def _keep(character: str, code: str) -> str:
    """The character itself, nothing, or a space."""
    category = unicodedata.category(character)
    # The half-space is a format character.
    if character in _APOSTROPHES or category == "Cf" or (category == "Mn" and code in _WITHOUT_VOWEL_SIGNS):
        return ""
    # Marks belong to letters: Hindi writes its vowels so.
    return character if category[0] in "LMN" else " "
