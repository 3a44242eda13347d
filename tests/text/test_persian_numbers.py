"""Persian number words."""

from __future__ import annotations

import pytest

from myxtts.text.persian_numbers import LONGEST_NAMED, say_cardinal, say_decimal, say_ordinal


def test_a_number_without_a_name_is_said_digit_by_digit():
    assert say_cardinal("1" + "0" * LONGEST_NAMED) == "یک" + " صفر" * LONGEST_NAMED
    assert say_cardinal("0" * 40 + "1001000") == "یک میلیون و هزار"


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("1", "یکم"), ("2", "دوم"), ("3", "سوم"), ("9", "نهم"), ("23", "بیست و سوم"), ("30", "سی\u200cام"), ("50", "پنجاهم"),
        ("100", "صدم"), ("1000000", "یک میلیونم"),
    ],
)  # fmt: skip
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
