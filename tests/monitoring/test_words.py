import pytest

from myxtts import units as words


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("duration", 0.0, "0.0 s"), ("duration", 9.94, "9.9 s"), ("duration", 59.4, "59 s"), ("duration", 59.6, "1 min 00 s"),
        ("duration", 200, "3 min 20 s"), ("duration", 3599.7, "1 h 00 min"), ("duration", 7500, "2 h 05 min"),
        ("duration", 90000, "1 d 01 h"), ("step_time", 0.0041, "4.10 ms"), ("step_time", 0.412, "412 ms"),
        ("step_time", 0.9994, "999 ms"), ("step_time", 0.9996, "1.00 s"), ("step_time", 1.5, "1.50 s"),
    ],
)  # fmt: skip
def test_times_as_people_read_them(form, value, text):
    assert getattr(words, f"format_{form}")(value) == text


@pytest.mark.parametrize("form", ["bytes", "count", "duration", "number", "share", "step_time"])
def test_unknown_is_never_zero(form):
    format_value = getattr(words, f"format_{form}")
    assert format_value(None) == "unknown"
    assert format_value(0).startswith("0")


def test_a_text_stands_beside_its_title_and_a_long_word_is_cut_only_where_that_is_wanted():
    assert words.wrap_titled("Note", "one two", width=10, indent=6) == ["Note  one", "      two"]
    assert words.wrap_titled("Note", "one", width=10, indent=4) == ["Note one"]
    assert words.wrap_titled("Note", "abcdef", width=10, indent=6) == ["Note  abcd", "      ef"]
    assert words.wrap_titled("Note", "abcdef", width=10, indent=6, breaks_words=False) == ["Note  abcdef"]
