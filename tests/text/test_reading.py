"""Texts as they are read aloud: Persian with vowel signs, words of one's own, pauses."""

from __future__ import annotations

import json

import pytest

from myxtts.errors import LexiconError, SpeechRequestError
from myxtts.text.lexicon import MOST_LEXICON_BYTES, read_lexicon
from myxtts.text.normalise import clean_text
from myxtts.text.persian import ALPHABET, SIGNS
from myxtts.text.persian_reading import read_persian
from myxtts.text.sentences import split_pauses
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import extend_vocabulary, train_vocabulary
from tests.text.conftest import read_sentences


def test_persian_sentences_are_read_as_people_read_them():
    expected = read_sentences("persian_sentences.tsv")
    assert len(expected) >= 300
    read = {written: read_persian(written) for written in expected}
    assert {written: each for written, each in read.items() if each != expected[written]} == {}
    assert set("".join(read.values())) <= {*ALPHABET, *SIGNS, " "}, "what no new vocabulary has"
    assert {each: again for each in read.values() if (again := read_persian(each)) != each} == {}


def test_vowel_signs_reach_only_a_model_whose_vocabulary_was_made_for_them(tmp_path, tiny_vocab):
    text = "کِرِم و GPU را از ۹ خانه مثلا نخرید."
    new = train_vocabulary({"fa": [text] * 3}, tmp_path / "new.json", text_tokens=200)
    grown = Tokenizer(extend_vocabulary(tiny_vocab, tmp_path / "grown.json", "fa", [text]).path)
    for tokenizer in (new, grown):
        assert tokenizer.clean(text, "fa") == "کِرِم و جی پی یو را از نُه خانه مثلاً نخرید."
        assert tokenizer.decode(tokenizer.encode(text, "fa")) == f"[fa]{tokenizer.clean(text, 'fa')}"
    # The published one has all signs for Arabic, but not the hamza: what was grown from it before reads as it did.
    document = json.loads((tmp_path / "new.json").read_text())
    document["model"]["vocab"]["ے"] = document["model"]["vocab"].pop(SIGNS[-1])
    (tmp_path / "old.json").write_text(json.dumps(document))
    old = Tokenizer(tmp_path / "old.json")
    assert old.clean(text, "fa") == clean_text(text, "fa") == "کرم و gpu را از نه خانه مثلا نخرید."
    assert new.clean("Dr. 5", "en") == clean_text("Dr. 5", "en")


TABLE = """# mine
[en]
Nguyen\twin
M.Sc.\tmaster of science
read\tred\tYesterday didn't
lead\tled\t< Of o'clock
New York\tthe city\t>! Times
@sentence_pause\t0.75
[fa]
{ما}\tمن ما
کرم\tکِرِم
کرم ما\tکِرمِ ما
دوست\tدوستِ\t> {ما}
مهر\tمِهر\tمي‌رود كتاب
شیر\tشیرِ\t< كتاب مي‌رود
[zh]
重庆\t虫庆
行\t航\t银行家 排
"""


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "NGUYEN's M.Sc., Nguyenes", "win's master of science, Nguyenes"),
        ("en", "I read it yesterday, and since then we often read", "I red it yesterday, and since then we often read"),
        ("en", "They didn’t read", "They didn’t red"),
        ("en", "of lead, to lead, five o’clock lead, 'of' lead", "of led, to lead, five o’clock led, 'of' led"),
        ("en", "New  York Times. New York, New York is, New York 'Times'", "New  York Times. New York, the city is, New York 'Times'"),
        ("fa", "كرم ما، کرم‌ها، بی‌کرم، کَرم", "کِرمِ ما، کِرِم‌ها، بی‌کرم، کَرم"),
        ("fa", "دوست من‌اند، دوست شما، Nguyen", "دوستِ من‌اند، دوست شما، Nguyen"),
        ("fa", "مهر می‌رود، در کتاب‌ها، مهر", "مِهر می‌رود، در کتاب‌ها، مِهر"),
        ("fa", "مهر رود. او به خانه می‌آید و شیر، کتاب‌ها شیر، می‌رود شیر", "مهر رود. او به خانه می‌آید و شیر، کتاب‌ها شیرِ، می‌رود شیرِ"),
        ("fa", "دوست \u200d", "دوست \u200d"),
        ("zh-cn", "去重庆吧，一排行李", "去虫庆吧，一排航李"),
        ("zh-cn", "行，他是银行家。", "航，他是银行家。"),
        ("de", "Nguyen", "Nguyen"),
    ],
)  # fmt: skip
def test_words_are_read_as_the_lexicon_of_their_language_says(tmp_path, language, text, expected):
    path = tmp_path / "words.tsv"
    path.write_text(TABLE, encoding="utf-8")
    lexicon = read_lexicon(path)
    assert lexicon.apply(text, language) == expected
    assert lexicon.pauses == {"en": {"sentence_pause": 0.75}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("word reading", "A line must be a word, a tab"), ("word\t", "A line must be"), ("a\tb\tc\td", "A line must be"),
        ("[xx]", "A language must be one of"), ("a\tb\t> {who}", "must stand above"), ("Same\t2", "stands there twice"),
        ("@sentence_pause\t11", "up to 10 seconds"), ("@pause\t1", "A line must be"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_lexicon_is_told_with_file_and_line(tmp_path, line, problem):
    path = tmp_path / "words.tsv"
    path.write_text(f"[en]\n\nSame\t1\n{line}\n", encoding="utf-8")
    with pytest.raises(LexiconError, match=rf"words\.tsv:4: .*{problem}"):
        read_lexicon(path)


def test_a_lexicon_without_language_or_end_or_file_is_refused(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("word\treading")
    with pytest.raises(LexiconError, match=r"words\.tsv:1: The language of what follows"):
        read_lexicon(path)
    path.write_text("#" * (MOST_LEXICON_BYTES + 1))
    with pytest.raises(LexiconError, match=r"words\.tsv: must have at most 1,048,576 bytes"):
        read_lexicon(path)
    with pytest.raises(LexiconError, match="gone"):
        read_lexicon(tmp_path / "gone")


def test_pauses_are_cut_out_and_bounded():
    text = "One[pause 0.5s]two [PAUSE 300 ms] three [pause ۱٫۵][pause]"
    assert split_pauses(text, 0.6) == [("One", 0.5), ("two ", 0.3), (" three ", 1.5), ("", 0.6), ("", None)]
    for wrong in ("[pause 11s]", "[pause -1s]", "[pause soon]", "[pause 1e9s]"):
        with pytest.raises(SpeechRequestError, match=r"from 0 to 10 seconds, as \[pause 0.5s\]"):
            split_pauses(f"a {wrong} b")
    with pytest.raises(SpeechRequestError, match="600 s at most together, but are 610 s"):
        split_pauses("a [pause 10s]" * 61)
