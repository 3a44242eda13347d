"""Persian number words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.persian_numbers import (
    HUNDREDS,
    LONGEST_NAMED,
    SCALES,
    TENS,
    UNDER_TWENTY,
    say_cardinal,
    say_decimal,
    say_ordinal,
)


def read_persian(words: str) -> int:
    values = {word: value for value, word in enumerate(UNDER_TWENTY)}
    values |= {word: 10 * value for value, word in enumerate(TENS) if word}
    values |= {word: 100 * value for value, word in enumerate(HUNDREDS) if word}
    total = group = 0
    for word in words.split():
        if word in values:
            group += values[word]
        elif word in SCALES:
            total, group = total + (group or 1) * 1000 ** SCALES.index(word), 0
        else:
            assert word == "و"
    return total + group


@settings(deadline=None)
@given(st.one_of(st.integers(0, 10**6), st.integers(0, 10**LONGEST_NAMED - 1)))
def test_cardinals_can_be_read_back(value):
    assert read_persian(say_cardinal(str(value))) == value


def test_a_number_without_a_name_is_said_digit_by_digit():
    assert say_cardinal("1" + "0" * LONGEST_NAMED) == "یک" + " صفر" * LONGEST_NAMED


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("1", "یکم"),
        ("2", "دوم"),
        ("3", "سوم"),
        ("9", "نهم"),
        ("23", "بیست و سوم"),
        ("30", "سی\u200cام"),
        ("50", "پنجاهم"),
        ("100", "صدم"),
        ("1000000", "یک میلیونم"),
    ],
)
def test_ordinals(digits, words):
    assert say_ordinal(digits) == words


@pytest.mark.parametrize(
    ("whole", "fraction", "words"),
    [
        ("3", "5", "سه ممیز پنج"),
        ("10", "05", "ده ممیز صفر پنج"),
        ("1", "205", "یک ممیز دویست و پنج"),
        ("1", "000", "یک ممیز صفر صفر صفر"),
        ("3", "1415", "سه ممیز یک چهار یک پنج"),
    ],
)
def test_decimals(whole, fraction, words):
    assert say_decimal(whole, fraction) == words
