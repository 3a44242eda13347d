"""Persian as people write it, and as a model should see it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.normalise import clean_text
from myxtts.text.persian import ALPHABET, LETTERS, normalise_persian
from tests.text.conftest import read_sentences

Z = "\u200c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("مسي\u0654ول", "مسئول"),
        ("ا\u0653ب", "آب"),
        ("\u202bسلام\u202c\ufeff \u200fدنیا😀", "سلام دنیا"),
        ("هـ. ق و ه\u200d.ش", "هجری قمری و هجری شمسی"),
        ("کتاب¬ها می\u200bشود", f"کتاب{Z}ها می{Z}شود"),
    ],
)
def test_odd_characters_are_normalised(text, expected):
    assert normalise_persian(text) == expected


def test_persian_is_normalised():
    expected = read_sentences("persian_plain.tsv")
    assert len(expected) > 50
    assert {text: clean_text(text, "fa") for text in expected} == expected


WRITTEN = st.lists(
    st.one_of(
        st.sampled_from([*LETTERS, *"يكةۀأىَّٔـ", *"۰۱۲۳۴۵۶۷۸۹٣0123456789", *" \u200c،؛؟.!:«»()-…,;?\"'/%٪#@&+=*°$€–½²"]),
        st.sampled_from(
            ["می ", "نمی ", " ها", " های", " تر", "ه ام", "ه.ش", "ق.م", "ص.", "(ع)", "دکتر.", "م.", "درصد", "km"]
        ),
        st.sampled_from(["۱۴۰۲/۰۵/۱۷", "14:30", "0912", "...", "😀", "ﷲ", "\u200d", "abc", "É", " میلیون ", "\n"]),
    ),
    max_size=25,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(WRITTEN, st.text(max_size=40)))
def test_normalised_text_stays_as_it_is_and_has_no_digits(text):
    for signs in (False, True):
        normal = normalise_persian(text, signs)
        assert normalise_persian(normal, signs) == normal
        assert not any(character.isdecimal() for character in normal)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from([*LETTERS, *" يكةۀأإَّ،؛؟.!«»()-\u200c۰۱۲۳۴۵۶۷۸۹%/:,;?"]), max_size=40))
def test_persian_text_becomes_characters_of_the_alphabet(text):
    assert set(normalise_persian(text)) <= set(ALPHABET) | {" "}
