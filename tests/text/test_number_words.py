"""Numbers in words: our own tables, and the fall-backs behind num2words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.numbers import (
    CARDINALS,
    CEILING,
    POINT_WORDS,
    SCALES,
    say_cardinal,
    say_decimal,
    say_integer,
    say_ordinal,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "शून्य"), (5, "पाँच"), (19, "उन्नीस"), (79, "उनासी"), (99, "निन्यानवे"), (100, "एक सौ"),
        (1984, "एक हज़ार नौ सौ चौरासी"), (100000, "एक लाख"),
        (12345678, "एक करोड़ तेईस लाख पैंतालीस हज़ार छह सौ अठहत्तर"),
    ],
)  # fmt: skip
def test_hindi_cardinals(value, words):
    assert say_cardinal(value) == words


def read_hindi(words: str) -> int:
    total = current = 0
    scales = {name: scale for scale, name in SCALES}
    for word in words.split():
        if word == "सौ":
            current *= 100
        elif word in scales:
            total, current = total + current * scales[word], 0
        else:
            current += CARDINALS.index(word)
    return total + current


@settings(deadline=None)
@given(st.integers(0, CEILING - 1))
def test_hindi_cardinals_can_be_read_back(value):
    assert read_hindi(say_cardinal(value)) == value


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "nultý"), ("3", "třetí"), ("20", "dvacátý"), ("21", "dvacátý první"), ("100", "stý"), ("1000", "tisící"),
        ("125", "sto dvacátý pátý"), ("1989", "tisíc devětset osmdesátý devátý"), ("5000", "pět tisící"),
    ],
)  # fmt: skip
def test_czech_ordinals(digits, words):
    assert say_ordinal(digits, "", "cs") == words


@pytest.mark.parametrize("language", POINT_WORDS)
@pytest.mark.parametrize("digits", ["0", "21", "1" * 16, "9" * 30, "7" * 400, "1" * 5000])
def test_every_number_has_words_in_every_language(language, digits):
    for spoken in (
        say_integer(digits, language),
        say_ordinal(digits, "", language),
        say_decimal(digits, digits, language),
    ):
        assert spoken.strip()
        assert not any(character.isdigit() for character in spoken)


def test_a_decimal_longer_than_a_float_keeps_its_digits():
    assert say_decimal("1", "2345678901234567", "en").endswith(
        "five six seven eight nine zero one two three four five six seven"
    )
