"""English beyond the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.normalise import clean_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # dates
        ("On January 5, 2023, we met.", "on january fifth, twenty twenty-three, we met."),
        ("Jan. 5th 1999", "january fifth, nineteen ninety-nine"),
        ("It was 5 May 1945.", "it was the fifth of may nineteen forty-five."),
        ("The 4th of July, 1776", "the fourth of july seventeen seventy-six"),
        ("2021-05-17", "may seventeenth, twenty twenty-one"),
        ("5/17/2021 and 17/5/2021", "may seventeenth, twenty twenty-one and may seventeenth, twenty twenty-one"),
        ("13/13/2021", "thirteen/thirteen/two thousand and twenty-one"),
        ("Sept. 2021", "september twenty twenty-one"),
        ("we may 5 times", "we may five times"),
        # years
        ("in 1984 and since 2005", "in nineteen eighty-four and since two thousand and five"),
        ("1914-1918", "nineteen fourteen to nineteen eighteen"),
        ("of about 1455, they", "of about fourteen fifty-five, they"),
        ("of about 1455 people", "of about one thousand, four hundred and fifty-five people"),
        ("the 1990s, the '80s, 2000s", "the nineteen nineties, the eighties, two thousands"),
        ("the 1900s", "the nineteen hundreds"),
        # times
        ("at 10:05 a.m. we", "at ten oh five a m we"),
        ("at 10:30pm", "at ten thirty p m"),
        ("until 5 p.m.", "until five p m."),
        ("12:00 or 14:00", "twelve o'clock or fourteen hundred"),
        ("10:30:15", "ten thirty and fifteen seconds"),
        ("10:30", "ten:thirty"),
        ("25:99", "twenty-five:ninety-nine"),
        # money
        ("$3 million", "three million dollars"),
        ("£2.5bn and $5K", "two point five billion pounds and five thousand dollars"),
        ("$0.99 or £0.01.", "ninety-nine cents or one penny."),
        ("$1 and £1", "one dollar and one pound sterling"),
        ("¥500, ₹1 and 50¢", "five hundred yen, one rupee and fifty cents"),
        ("$1,234,567", "one million, two hundred and thirty-four thousand, five hundred and sixty-seven dollars"),
        # fractions, units, signs
        ("1/2 cup, 2 1/2 miles", "one half cup, two and a half miles"),
        ("3/4, ½, 2¾, ⅔", "three quarters, one half, two and three quarters, two thirds"),
        ("9/11 and 24/7", "nine/eleven and twenty-four/seven"),
        ("5km at 100 km/h", "five kilometers at one hundred kilometers per hour"),
        ("6 ft. tall, 1 lb, 20°C", "six feet tall, one pound, twenty degrees celsius"),
        ("Ft. Worth", "fort worth"),
        ("-5 or −5", "minus five or minus five"),
        ("10-12 apples, 5–7", "ten to twelve apples, five to seven"),
        ("a 3-2 win", "a three-two win"),
        ("2 + 2 = 4; ~5", "two plus two equals four; about five"),
        # codes
        ("555-1234", "five five five, one two three four"),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
        ("version 2.0.1, 007", "version two point zero point one, zero zero seven"),
        # words
        ("Henry VIII, World War II", "henry the eighth, world war two"),
        ("Chapter IV; Charles I think", "chapter four; charles i think"),
        ("Chapter IIII", "chapter iiii"),
        ("info@example.com", "info at example dot com"),
        ("https://www.example.com/a-b.", "www dot example dot com slash a dash b."),
        ("e.g. this, i.e. that, etc.", "for example this, that is that, et cetera."),
        ("the U.S. army", "the u s army"),
        ("No. 5 Main St. is near St. Paul's", "number five main street is near saint paul's"),
        ("no. 5", "no. five"),
        ("B12, an MP3, H2O, 5G, the 21st, A4", "b twelve, an mp three, h two o, five g, the twenty-first, a four"),
        ("Mrs. Jones", "misess jones"),
    ],
)
def test_english_is_read_as_people_say_it(text, expected):
    assert clean_text(text, "en") == expected


PIECES = [*"0123456789 .,:;-–/$£€%°#&+='’()", "  ", "May ", "Jan. ", "in ", "pm", "a.m.", "st", "km", "St. ", "Mr. "]
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(WRITTEN, st.text(max_size=40)))
def test_cleaned_english_is_clean(text):
    cleaned = clean_text(text, "en")
    assert not any(character.isdecimal() for character in cleaned)
    assert clean_text(cleaned, "en") == cleaned
