"""Romanised languages, and what they say when their packages are missing."""

from __future__ import annotations

import sys

import pytest

from myxtts.errors import MissingLanguagePackageError
from myxtts.text.normalise import _load_cutlet, clean_text


@pytest.fixture
def fresh_cutlet():
    _load_cutlet.cache_clear()
    yield
    _load_cutlet.cache_clear()


def test_korean_is_romanised_after_its_numbers_are_words():
    assert clean_text("안녕하세요 50명", "ko") == "annyeonghase-yo osibmyeong"


def test_japanese_is_lower_case_romaji():
    assert clean_text("Hello、世界。", "ja") == "hello, sekai."


@pytest.mark.parametrize(
    ("language", "text", "name", "package"),
    [
        ("zh-cn", "你好", "Chinese", "pypinyin"),
        ("ko", "안녕", "Korean", "hangul_romanize"),
        ("ja", "世界", "Japanese", "cutlet"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch, fresh_cutlet, language, text, name, package
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingLanguagePackageError) as caught:
        clean_text(text, language)
    assert str(caught.value) == (
        f"{name} text needs the package {package}, which is not installed. "
        "Run: pip install -c constraints.txt '.[languages]' in the source folder of MyXTTS"
    )
    assert clean_text("Hello 5", "en") == "hello five"


def test_a_missing_japanese_dictionary_is_named_too(monkeypatch, fresh_cutlet):
    class WithoutDictionary:
        def __init__(self):
            raise RuntimeError("Failed initializing MeCab.")

    monkeypatch.setattr("cutlet.Cutlet", WithoutDictionary)
    with pytest.raises(
        MissingLanguagePackageError, match=r"Japanese text needs the package unidic-lite.*'\.\[languages\]'"
    ):
        clean_text("世界", "ja")
