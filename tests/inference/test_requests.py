"""Settings and texts: what can be said, in which pieces, and what is refused."""

from dataclasses import replace

import pytest

from myxtts.checkpoints.store import BASE_FOLDER
from myxtts.errors import MissingLanguageTagError, SpeechRequestError
from myxtts.inference.speech import PieceLimits, SpeechSettings, choose_bucket, choose_rows, split_text
from myxtts.text.lexicon import read_lexicon
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary
from tests.inference.builders import VOCABULARY

LIMITS = PieceLimits(tokens=400, codes=602)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(VOCABULARY)


def test_a_language_without_a_tag_in_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(MissingLanguageTagError, match=r"\[fa\]"):
        split_text("سلام دنیا", "fa", tokenizer, LIMITS)


def test_persian_is_split_and_encoded(tmp_path):
    text = "سلام دنیا. امروز هوا خوب است؟ بله! کتاب ۱۲ صفحه دارد."
    tokenizer = train_vocabulary({"fa": [text] * 4}, tmp_path / "vocab.json", text_tokens=120)
    pieces = split_text(text, "fa", tokenizer, PieceLimits(tokens=60, codes=100))
    assert len(pieces) > 1
    assert all(piece.ids[0] == pieces[0].ids[0] and tokenizer.unknown_id not in piece.ids for piece in pieces)
    assert tokenizer.decode(pieces[0].ids[:1]) == "[fa]"


def test_sentences_that_fit_stay_together_and_no_word_is_lost(tokenizer):
    text = "One two three. " * 40
    pieces = split_text(text, "en", tokenizer, LIMITS)
    assert len(pieces) > 1
    assert all(len(piece.text) <= 250 for piece in pieces)
    assert " ".join(piece.text for piece in pieces).split() == text.split()


def test_a_model_that_says_less_at_a_time_gets_shorter_pieces(tokenizer):
    text = "One two three. " * 20
    half = PieceLimits(tokens=400, codes=301)
    young = PieceLimits(tokens=400, codes=602, clip_seconds=2.9)
    assert max(len(piece.text) for piece in split_text(text, "en", tokenizer, half)) <= 125
    assert max(len(piece.text) for piece in split_text(text, "en", tokenizer, young)) <= 62


def test_a_model_that_has_heard_single_sentences_is_given_single_sentences(tokenizer):
    pieces = split_text("One. Two three. Four.", "en", tokenizer, replace(LIMITS, joins_sentences=False))
    assert [piece.text for piece in pieces] == ["One.", "Two three.", "Four."]


def test_a_number_counts_as_it_is_read_and_is_not_cut(tokenizer):
    young = PieceLimits(tokens=400, codes=602, clip_seconds=2.9, joins_sentences=False)
    text = "1 22 333 4444 55555 1,000,000 2024 1999 12 99"
    pieces = split_text(text, "en", tokenizer, young)
    assert max(len(tokenizer.clean(piece.text, "en")) for piece in pieces) <= young.count_characters("en")
    assert " ".join(piece.text for piece in pieces) == text


def test_pieces_with_too_many_tokens_are_split_again(tokenizer):
    text = "In 1999 there were 123456789 of 987654321, and 55555 more in 2000."
    pieces = split_text(text, "en", tokenizer, PieceLimits(tokens=60, codes=602))
    assert all(len(piece.ids) <= 60 for piece in pieces)
    assert "".join(piece.text for piece in pieces).replace(" ", "") == text.replace(" ", "")


def test_pauses_stand_where_they_were_asked_for_and_between_sentences_and_paragraphs(tokenizer, tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("[en]\nNguyen\twin\n@sentence_pause\t0.5\n@paragraph_pause\t2\n")
    text = "[pause 1s] One. Two, \n\n three [pause 0s][pause 250ms] four. [pause]"

    def list_pauses(settings=None, lexicon=None):
        pieces = split_text(text, "en", tokenizer, LIMITS, settings or SpeechSettings(), read_lexicon(lexicon))
        return [(piece.text, piece.before_s, piece.after_s) for piece in pieces]

    assert list_pauses() == [("One. Two,", 1.0, 0.0), ("three", 0.6, 0.0), ("four.", 0.25, 0.6)]
    by_table = [("One.", 1.0, 0.0), ("Two,", 0.5, 0.0), ("three", 2.0, 0.0), ("four.", 0.25, 2.0)]
    assert list_pauses(lexicon=path) == by_table
    by_request = SpeechSettings(sentence_pause=0.1, paragraph_pause=0.0)
    assert [pause for _, pause, _ in list_pauses(by_request, path)] == [1.0, 0.1, 0.0, 0.25]
    cut = split_text("a, " * 200, "en", tokenizer, LIMITS, SpeechSettings(sentence_pause=3.0))
    assert {piece.before_s for piece in cut[1:]} == {0.2}, "where a sentence had to be cut"
    (piece,) = split_text("Mr Nguyen", "en", tokenizer, LIMITS, lexicon=read_lexicon(path))
    assert (piece.text, tokenizer.decode(piece.ids)) == ("Mr Nguyen", "[en]mr win")


def test_what_cannot_be_split_is_refused(tokenizer):
    with pytest.raises(SpeechRequestError, match="something to say"):
        split_text("[pause 1s]", "en", tokenizer, LIMITS)
    with pytest.raises(SpeechRequestError, match="2 tokens at most in this model, but '5' alone has"):
        split_text("5", "en", tokenizer, PieceLimits(tokens=2, codes=602))
    with pytest.raises(SpeechRequestError, match=r"it knows none\. It speaks en:"):
        split_text("Good. سلام.", "en", Tokenizer(BASE_FOLDER / "vocab.json"), replace(LIMITS, joins_sentences=False))


def test_letters_that_the_model_has_no_sound_for_are_told():
    (piece,) = split_text("Über “Zoë” 5 ☺", "en", Tokenizer(BASE_FOLDER / "vocab.json"), LIMITS)
    assert piece.strange == ("ü", "ë")


def test_shapes_are_few():
    assert {choose_bucket(tokens, 402) for tokens in range(1, 403)} == {32, 64, 128, 256, 402}
    assert all(choose_bucket(tokens, 402) >= tokens for tokens in range(1, 403))
    assert [choose_rows(rows) for rows in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
