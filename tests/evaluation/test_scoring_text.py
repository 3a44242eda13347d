"""Texts as they are compared: what cannot be heard does not count."""

import pytest

from myxtts.errors import UnsupportedLanguageError
from myxtts.evaluation.scores import join_words, split_words


@pytest.mark.parametrize(
    ("language", "spellings"),
    [
        ("en", ["Dr. Smith's 3rd cat, in 1999!", "doctor smith’s third cat in nineteen ninety-nine", "DOCTOR SMITHS THIRD CAT IN NINETEEN NINETY NINE"]),
        ("en", ["A re-entry: 50%.", "a re entry, fifty percent"]),
        ("fa", ["می‌روم خانه، ۱۲ کتاب!", "می روم خانه دوازده کتاب", "ميروم خانه ۱۲ كتاب"]),
        ("de", ["Straße, 3 Bücher", "STRASSE drei bücher"]),
        ("zh-cn", ["我有3只猫。", "我有三只猫", "我 有 三 只 猫"]),
        ("ar", ["كِتَابٌ", "كتاب"]),
    ],
)  # fmt: skip
def test_spellings_that_sound_alike_are_the_same_words(language, spellings):
    first, *others = (split_words(text, language) for text in spellings)
    assert first
    for other in others:
        assert other == first


def test_words_are_parted_where_the_language_parts_them():
    assert split_words("Two words.", "en") == ["two", "words"]
    assert split_words("两个", "zh") == ["两", "个"]
    assert join_words(["two", "words"], "en") == "two words"
    assert join_words(["两", "个"], "zh") == "两个"


def test_vowel_signs_of_hindi_are_part_of_their_words():
    assert split_words("नमस्ते दुनिया", "hi") == ["नमस्ते", "दुनिया"]


def test_what_is_no_word_gives_none():
    assert split_words(" ?! ...", "en") == []


def test_an_unknown_language_is_refused():
    with pytest.raises(UnsupportedLanguageError, match="xx"):
        split_words("words", "xx")
