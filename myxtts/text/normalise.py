"""The way from a text as people write it to the words a model is trained on, by language."""

from __future__ import annotations

import unicodedata

from myxtts.text.abbreviations import expand_abbreviations
from myxtts.text.chinese import expand_chinese
from myxtts.text.english import expand_english
from myxtts.text.languages import resolve_language
from myxtts.text.numbers import expand_numbers, write_ascii_digits
from myxtts.text.persian import normalise_persian
from myxtts.text.romanise import romanise_chinese, romanise_japanese, romanise_korean
from myxtts.text.symbols import expand_symbols

# str.lower turns İ into an i with a dot of its own, which no vocabulary has.
_TURKISH_CAPITALS = str.maketrans("İÖÜ", "iöü")
_ARABIC_NUMBER_SIGNS = str.maketrans("٫٬٪", ",.%")

# Composing would put Arabic vowel signs into another order than people type them in, and take Hindi letters apart.
_LEFT_UNCOMPOSED = frozenset({"ar", "hi"})


def clean_text(text: str, language: str) -> str:
    """The text as the model reads it: numbers, symbols and abbreviations in words, lower case, Latin where XTTS has it so.

    For the 17 languages of XTTS v2 this is the cleaning its weights were trained with.
    """
    code = resolve_language(language)
    expanded = expand_text(text, code)
    if code == "zh-cn":
        return romanise_chinese(expanded)
    if code == "ko":
        return romanise_korean(expanded)
    if code == "ja":
        return romanise_japanese(expanded)
    return expanded


def expand_text(text: str, language: str) -> str:
    """The text in words, still in the script of its language. Japanese is left to its romaniser as it is."""
    code = resolve_language(language)
    # Half a surrogate pair, as broken JSON has it, is no character: the tokenizers library refuses the whole text.
    text = text.encode("utf-8", "ignore").decode("utf-8")
    if code == "fa":
        return normalise_persian(text)
    if code not in _LEFT_UNCOMPOSED:
        # Text from macOS often has letters and accents apart, which a vocabulary of whole letters does not know.
        text = unicodedata.normalize("NFC", text)
    if code == "ja":
        return text
    return _expand_words(write_ascii_digits(text.replace('"', "")), code)


def _expand_words(text: str, code: str) -> str:
    if code == "en":
        text = expand_english(text)
    elif code == "tr":
        text = text.translate(_TURKISH_CAPITALS)
    elif code == "ar":
        text = text.translate(_ARABIC_NUMBER_SIGNS)
    text = text.lower()
    text = expand_chinese(text) if code == "zh-cn" else expand_numbers(text, code)
    text = expand_abbreviations(text, code)
    text = expand_symbols(text, code)
    return " ".join(text.split())
