"""Cleaning survives whatever people feed it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.normalise import CHARACTER_LIMITS, clean_text, expand_text
from myxtts.text.sentences import split_sentences

SPELLED = [language for language in CHARACTER_LIMITS if language != "ja"]
NUMERIC = st.lists(
    st.sampled_from([*"0123456789", *"٣۵३５", *" .,$£€%-–/:°()'½²", "st", "e", ".", "번", "वाँ", "年", "-й"]),
    max_size=25,
).map("".join)


@pytest.mark.parametrize("language", SPELLED)
def test_no_digit_is_left_where_numbers_are_spelled(language):
    @settings(max_examples=60, deadline=None)
    @given(st.one_of(st.text(max_size=40), NUMERIC))
    def check(text):
        assert isinstance(clean_text(text, language), str)
        expanded = expand_text(text, language)
        assert not any(character.isdecimal() for character in expanded)

    check()


@pytest.mark.parametrize("language", ["en", "de", "fa", "zh-cn"])
def test_a_long_run_of_digits_does_not_take_quadratic_time(language):
    start_s = time.process_time()
    expand_text("1" * 30000, language)
    # Measured: under 1 s; 10 to 50 s with a pattern that is tried from every digit.
    assert time.process_time() - start_s < 6.0


@pytest.mark.parametrize("mark", [".", "!", "؟", "\n", " ", ",", "("])
def test_a_long_run_of_marks_does_not_take_quadratic_time(mark):
    start_s = time.process_time()
    split_sentences(mark * 100_000 + "x", "en")
    # Measured: under 0.3 s; 100 s with a pattern that is tried from every mark.
    assert time.process_time() - start_s < 6.0
