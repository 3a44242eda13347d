"""Long texts in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.errors import UserError
from myxtts.text.normalise import CHARACTER_LIMITS, character_limit
from myxtts.text.sentences import split_sentences
from tests.support.processes import run_python


@pytest.mark.parametrize(
    ("language", "limit", "text", "pieces"),
    [
        (
            "en",
            40,
            "Dr. Smith went to Washington. He met Mr. Jones at 3.14 p.m. on Jan. 5! Was it? Yes... it was.",
            ["Dr. Smith went to Washington.", "He met Mr. Jones at 3.14 p.m. on Jan. 5!", "Was it? Yes... it was."],
        ),
        ("en", 30, "J. R. R. Tolkien wrote it. Nobody else.", ["J. R. R. Tolkien wrote it.", "Nobody else."]),
        ("en", 24, "Hi you all. It is aprx. five.", ["Hi you all.", "It is aprx. five."]),
        ("en", 20, "It began in 1984. It ended.", ["It began in 1984.", "It ended."]),
        ("en", 14, 'He said "Go." She left.', ['He said "Go."', "She left."]),
        ("en", 20, "Title one\n\nSome text goes on", ["Title one", "Some text goes on"]),
        ("de", 22, "Ja. Das ist der 3. Mai. Es regnet.", ["Ja.", "Das ist der 3. Mai.", "Es regnet."]),
        ("fa", 25, "سلام. حال شما چطور است؟خوبم؛ ممنون.", ["سلام. حال شما چطور است؟", "خوبم؛ ممنون."]),
        ("fa", 12, "آمد؛ رفت؛ نشست. خوابید؟", ["آمد؛ رفت؛", "نشست.", "خوابید؟"]),
        ("zh", 10, "你好。今天天气很好！你去哪儿？我去学校。", ["你好。今天天气很好！", "你去哪儿？我去学校。"]),
        ("ja", 10, "こんにちは。世界はとても広い！", ["こんにちは。", "世界はとても広い！"]),
        ("hi", 20, "यह एक वाक्य है। दूसरा वाक्य यहाँ है।", ["यह एक वाक्य है।", "दूसरा वाक्य यहाँ है।"]),
        ("en", 20, "one two three, four five six, seven", ["one two three,", "four five six, seven"]),
        ("en", 9, "one two three four", ["one two", "three", "four"]),
        ("en", 4, "abcdefghij", ["abcd", "efgh", "ij"]),
        ("en", 100, "  All of it.   Fits. ", ["All of it.   Fits."]),
        ("en", 5, " \n ", []),
    ],
)
def test_pieces(language, limit, text, pieces):
    assert split_sentences(text, language, limit) == pieces


def test_sentences_that_must_not_be_joined_are_a_piece_each():
    text = "Dr. Smith left. Was it late? It was late, very late, and dark."
    pieces = ["Dr. Smith left.", "Was it late?", "It was late,", "very late, and dark."]
    assert split_sentences(text, "en", 24, join=False) == pieces, "the last is not left with a word or two"
    assert split_sentences("It was late and dark", "en", 8, join=False) == ["It was", "late and", "dark"]


def test_without_a_limit_the_language_has_one():
    pieces = split_sentences("A sentence of some length. " * 40, "en")
    assert max(map(len, pieces)) <= character_limit("en") == 250
    assert len(pieces) == 5
    assert max(map(len, split_sentences("جمله‌ای کوتاه. " * 40, "fa"))) <= CHARACTER_LIMITS["fa"]


def test_a_limit_below_one_is_refused():
    with pytest.raises(UserError, match="at least 1 character, but is 0"):
        split_sentences("a", "en", 0)


MARKS = st.lists(st.sampled_from([*'aA1 .,!?؟؛،。、।\n-"»', "Mr.", "word", "سلام", "你好"]), max_size=60).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.one_of(MARKS, st.text(max_size=80)), st.sampled_from(sorted(CHARACTER_LIMITS)), st.integers(1, 30))
def test_nothing_is_lost_and_no_piece_is_too_long_or_empty(text, language, limit):
    pieces = split_sentences(text, language, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= limit and piece == piece.strip() for piece in pieces)


def test_text_imports_neither_tensorflow_nor_the_packages_of_some_languages():
    heavy = ["tensorflow", "keras", "numpy", "pypinyin", "cutlet", "hangul_romanize", "pydantic"]
    program = f"import sys, myxtts.text.sentences, myxtts.text.vocabulary; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(["-c", program]).stdout == "[]\n"
