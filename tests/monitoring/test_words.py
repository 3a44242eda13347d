import pytest

from myxtts.monitoring.words import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_share,
    format_step_time,
    wrap_titled,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"), (90000, "1 d 01 h"), (None, "unknown"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0041, "4.10 ms"),
        (0.412, "412 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.5, "1.50 s"),
        (None, "unknown"),
    ],
)
def test_step_times(seconds, text):
    assert format_step_time(seconds) == text


def test_unknown_is_never_zero():
    for format_value in (format_bytes, format_count, format_number, format_share):
        assert format_value(None) == "unknown"
        assert format_value(0).startswith("0")


def test_a_text_stands_beside_its_title_and_a_long_word_is_cut_only_where_that_is_wanted():
    assert wrap_titled("Note", "one two", width=10, indent=6) == ["Note  one", "      two"]
    assert wrap_titled("Note", "one", width=10, indent=4) == ["Note one"]
    assert wrap_titled("Note", "abcdef", width=10, indent=6) == ["Note  abcd", "      ef"]
    assert wrap_titled("Note", "abcdef", width=10, indent=6, breaks_words=False) == ["Note  abcdef"]
