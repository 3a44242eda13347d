"""Texts to ids and back."""

from __future__ import annotations

import json

import pytest

from myxtts.errors import MissingLanguageTagError, VocabularyError
from myxtts.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_vocab):
    return Tokenizer(tiny_vocab)


@pytest.fixture
def save_changed(tiny_vocab, tmp_path):
    """Saves the tiny vocabulary after a change to its content."""

    def save(change):
        document = json.loads(tiny_vocab.read_text(encoding="utf-8"))
        document = change(document) or document
        path = tmp_path / "vocab.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return save


def test_sizes_ids_and_languages_come_from_the_file(tokenizer):
    assert tokenizer.text_tokens == 188
    assert (tokenizer.start_id, tokenizer.stop_id, tokenizer.unknown_id) == (170, 0, 1)
    assert tokenizer.languages[:3] == ("en", "de", "fr")
    assert len(tokenizer.languages) == 17


def test_reference_vocabulary_has_its_own_ids(parity_dir):
    tokenizer = Tokenizer(parity_dir / "xtts_test_vocab.json")
    assert (tokenizer.text_tokens, tokenizer.start_id, tokenizer.stop_id) == (5413, 261, 0)
    assert "hu" not in tokenizer.languages


def test_decoding_leaves_out_stop_and_unknown(tokenizer):
    ids = tokenizer.encode("no ж", "en")
    assert tokenizer.unknown_id in ids
    assert tokenizer.decode([*ids, tokenizer.stop_id]) == "[en]no "


def test_decoding_refuses_an_id_the_vocabulary_does_not_have(tokenizer):
    with pytest.raises(VocabularyError, match=r"highest is 187, but one is 188"):
        tokenizer.decode([188])


def test_unknown_characters_are_named_once_and_in_order(tokenizer):
    cleaned = tokenizer.clean("жa ж ï", "en")
    assert tokenizer.find_unknown_characters(cleaned) == ("ж", "ï")
    assert tokenizer.encode_cleaned(cleaned, "en").count(tokenizer.unknown_id) == 3
    assert tokenizer.find_unknown_characters(tokenizer.clean("plain text", "en")) == ()


def test_a_mark_without_an_id_becomes_the_plain_one_that_has_one(tokenizer, parity_dir):
    assert tokenizer.clean("“It’s” — so…", "en") == "it's - so."
    # That vocabulary has the typographic marks, and a model trained with it knows them.
    assert Tokenizer(parity_dir / "xtts_test_vocab.json").clean("“It’s” — so…", "en") == "“it’s” — so…"


def test_a_tag_inside_a_text_does_not_switch_the_language(save_changed):
    tokenizer = Tokenizer(save_changed(lambda document: document["model"]["vocab"].update({"[": 188, "]": 189})))
    assert tokenizer.decode(tokenizer.encode("a [de] [b]", "en")) == "[en]a (de) [b]"


def test_a_language_without_a_tag_names_the_tags_and_the_way_out(tokenizer):
    with pytest.raises(MissingLanguageTagError) as caught:
        tokenizer.encode("سلام", "fa")
    assert "must have the tag [fa]" in str(caught.value)
    assert "[en], [de], [fr]" in str(caught.value)
    assert "`myxtts vocabulary`" in str(caught.value)


def remove_start(document):
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] != "[START]"]


def share_an_id(document):
    document["model"]["vocab"]["a"] = document["model"]["vocab"]["b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: [document], "must hold an object, but holds a list"),
        (lambda document: {"en": 1}, "not a file of the tokenizers library"),
        (lambda document: document["model"].update(type="WordPiece"), "must be BPE with merges, but is .WordPiece."),
        (lambda document: document["added_tokens"].append({}), "has no content"),
        (remove_start, r"lack \[START\]"),
        (lambda document: document["model"]["vocab"].update(a=-1), "not a whole number from 0 up"),
        (share_an_id, "two share 15"),
        (
            lambda document: document.update(padding={"strategy": {"Fixed": 10**9}}),
            "padding must be null, as XTTS has it",
        ),
        (lambda document: document.update(normalizer={"type": "Prepend", "prepend": "x"}), "normalizer must be null"),
        (lambda document: document.update(surprise=1), "has surprise, which no vocabulary of XTTS has"),
        (
            lambda document: document["model"].update(continuing_subword_prefix="##"),
            "continuing_subword_prefix must be null",
        ),
        (lambda document: document["model"].update(unk_token="nowhere"), "unk_token must be a token of model.vocab"),
        (lambda document: document["model"]["vocab"].update(a=10**6), "below 1000000"),
        (lambda document: document["model"]["merges"].append(["q", "z"]), "tokens that are not in model.vocab"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_with_the_reason(save_changed, change, message):
    with pytest.raises(VocabularyError, match=message):
        Tokenizer(save_changed(change))


def test_a_missing_or_unreadable_file_is_refused_with_its_path(tmp_path):
    with pytest.raises(VocabularyError, match=r"there is none at .*nowhere\.json"):
        Tokenizer(tmp_path / "nowhere.json")
    with pytest.raises(VocabularyError, match="must be a file, but is a folder"):
        Tokenizer(tmp_path)
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(VocabularyError, match=r"broken\.json: must be JSON, but is not"):
        Tokenizer(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VocabularyError, match="must be UTF-8 text, but is not"):
        Tokenizer(broken)
