"""The languages, by the code their tag has in a vocabulary, and how long a text may be in each."""

from __future__ import annotations

from collections.abc import Mapping

from myxtts.text.errors import UnsupportedLanguageError

CHARACTER_LIMITS: Mapping[str, int] = {
    "en": 250,
    "es": 239,
    "fr": 273,
    "de": 253,
    "it": 213,
    "pt": 203,
    "pl": 224,
    "tr": 226,
    "ru": 182,
    "nl": 251,
    "cs": 186,
    "ar": 166,
    "zh-cn": 82,
    "hu": 224,
    "ko": 95,
    "ja": 71,
    "hi": 150,
    # Not a language of XTTS. Persian is written without its short vowels, as Arabic is: a character stands for as much
    # sound as an Arabic one, so Arabic's limit keeps a piece as short in seconds as the others are.
    "fa": 166,
}
"""Longest text in characters, as written, that XTTS speaks without losing its end."""


def resolve_language(language: str) -> str:
    """The code in the form tags have: lower case and without region, except `zh-cn`, which stands for all Chinese."""
    code = language.strip().lower().replace("_", "-").partition("-")[0]
    code = "zh-cn" if code == "zh" else code
    if code not in CHARACTER_LIMITS:
        raise UnsupportedLanguageError(
            f"A language must be one of {', '.join(CHARACTER_LIMITS)}, but is {language!r}. "
            "Give the code of the language the text is written in."
        )
    return code


def character_limit(language: str) -> int:
    """Longest text in characters, as written, that is spoken in one piece in this language."""
    return CHARACTER_LIMITS[resolve_language(language)]
