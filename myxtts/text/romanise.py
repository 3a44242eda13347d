"""Chinese, Japanese and Korean in Latin letters, the form XTTS was trained with.

The packages that do it are the extra `languages`: they are imported when a text needs them, so that everybody else can do
without.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from myxtts.text.errors import MissingLanguagePackageError


def romanise_chinese(text: str) -> str:
    """Pinyin with tone digits and no separators: ni3hao3. What is not Chinese stays as it is."""
    pypinyin = _import_package("pypinyin", "Chinese")
    syllables = pypinyin.lazy_pinyin(text, style=pypinyin.Style.TONE3, neutral_tone_with_five=True)
    return "".join(syllables)


def romanise_japanese(text: str) -> str:
    """Hepburn romaji in lower case, words apart: konnichiha, sekai."""
    romaji: str = _load_cutlet().romaji(text)
    return romaji.lower()


def romanise_korean(text: str) -> str:
    """Academic romanisation of Hangul. What is not Hangul stays as it is."""
    hangul = _import_package("hangul_romanize", "Korean")
    rule = _import_package("hangul_romanize.rule", "Korean")
    romanised: str = hangul.Transliter(rule.academic).translit(text)
    return romanised


@functools.cache
def _load_cutlet() -> Any:
    # Loading the dictionary takes far longer than reading a sentence.
    cutlet = _import_package("cutlet", "Japanese")
    try:
        return cutlet.Cutlet()
    except RuntimeError as error:  # MeCab finds no dictionary
        raise _make_error("unidic-lite", "Japanese") from error


def _import_package(name: str, language: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _make_error(error.name or name, language) from error


def _make_error(package: str, language: str) -> MissingLanguagePackageError:
    return MissingLanguagePackageError(
        f"{language} text needs the package {package}, which is not installed. Run: pip install 'myxtts[languages]'"
    )
