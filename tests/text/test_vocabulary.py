"""Vocabularies learnt from texts and grown by a language."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.errors import VocabularyError
from myxtts.text.persian import ALPHABET
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import extend_vocabulary, merge_symbols, train_vocabulary

PERSIAN = [
    "سلام دنیا، حال شما چطور است؟",
    "کتاب‌های زیادی در کتابخانه هست.",
    "من به مدرسه می‌روم و پدرم گاهی می‌آید؛ ۲۵ کتاب دارد!",
    "پرنده‌های ژرف‌اندیش گاهی پرواز می‌کنند.",
] * 3
ENGLISH = ["The cat sat on the mat.", "The dog and the cat ran after the other cats!"] * 3


def read_ids(path: Path) -> dict[str, int]:
    ids: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    return ids


@pytest.fixture(scope="module")
def grown(tiny_vocab, tmp_path_factory):
    path = tmp_path_factory.mktemp("grown") / "vocab.json"
    return extend_vocabulary(tiny_vocab, path, "fa", PERSIAN, merges=40)


def test_growth_adds_a_tag_characters_and_merges_behind_the_old_ids(grown, tiny_vocab):
    old, new = read_ids(tiny_vocab), read_ids(grown.path)
    assert {token: new[token] for token in old} == old
    added = sorted(set(new) - set(old), key=new.__getitem__)
    assert added[0] == grown.tag == "[fa]"
    assert [new[token] for token in added] == list(range(grown.old_text_tokens, grown.text_tokens))
    assert len(added) == 1 + len(grown.characters) + len(grown.merges)
    assert len(grown.merges) == 40
    assert (grown.old_text_tokens, grown.text_tokens) == (188, 188 + len(added))


def test_grown_vocabulary_encodes_the_new_language_without_unknowns(grown):
    tokenizer = Tokenizer(grown.path)
    assert tokenizer.languages[-1] == "fa"
    assert (tokenizer.start_id, tokenizer.stop_id) == (170, 0)
    for text in PERSIAN:
        ids = tokenizer.encode(text, "fa")
        assert tokenizer.unknown_id not in ids
        assert tokenizer.decode(ids) == f"[fa]{tokenizer.clean(text, 'fa')}"
    assert tokenizer.find_unknown_characters(ALPHABET) == ()


@pytest.mark.parametrize("base", ["tiny_vocab.json", "xtts_test_vocab.json"])
def test_growth_changes_no_old_encoding(base, request, tiny_vocab, tmp_path):
    path = tiny_vocab if base == tiny_vocab.name else request.getfixturevalue("parity_dir") / base
    growth = extend_vocabulary(path, tmp_path / "grown.json", "fa", PERSIAN, merges=60)
    old, new = Tokenizer(path), Tokenizer(growth.path)
    tokens = sorted(token for token in read_ids(path) if not token.startswith("["))
    # Persian words and letters that Arabic has too are where a careless merge would show.
    shared = [piece for text in PERSIAN for piece in (*text.split(), *text) if not old.find_unknown_characters(piece)]
    assert growth.merges

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.one_of(st.sampled_from(tokens), st.sampled_from([*shared, " "])), max_size=20).map("".join),
        st.sampled_from(old.languages),
    )
    def check(text, language):
        assert new.encode_cleaned(text, language) == old.encode_cleaned(text, language)

    check()


def test_growing_twice_adds_only_what_is_new(grown, tmp_path):
    again = extend_vocabulary(grown.path, tmp_path / "again.json", "fa", [*PERSIAN, "ℵ"], merges=40)
    assert (again.tag, again.characters, again.merges) == (None, "ℵ", ())
    assert again.text_tokens == grown.text_tokens + 1


def test_a_vocabulary_can_grow_in_place(tiny_vocab, tmp_path):
    path = tmp_path / "vocab.json"
    path.write_bytes(tiny_vocab.read_bytes())
    other_name = tmp_path / "linked.json"
    os.link(path, other_name)
    growth = extend_vocabulary(path, path, "fa", PERSIAN, merges=5)
    assert Tokenizer(path).text_tokens == growth.text_tokens
    # A new file took the place of the old one, which nobody who has it open sees change.
    assert other_name.read_bytes() == tiny_vocab.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["linked.json", "vocab.json"]


def test_both_notations_of_merges_can_grow(tiny_vocab, tmp_path):
    document = json.loads(tiny_vocab.read_text(encoding="utf-8"))
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    base = tmp_path / "base.json"
    base.write_text(json.dumps(document), encoding="utf-8")
    growth = extend_vocabulary(base, tmp_path / "grown.json", "fa", PERSIAN, merges=5)
    merges = json.loads(growth.path.read_text(encoding="utf-8"))["model"]["merges"]
    assert merges[-1] == " ".join(growth.merges[-1])
    assert Tokenizer(growth.path).encode(PERSIAN[0], "fa")


def test_growth_needs_texts(tiny_vocab, tmp_path):
    with pytest.raises(VocabularyError, match="not one word in those given for 'fa'"):
        extend_vocabulary(tiny_vocab, tmp_path / "grown.json", "fa", ["", "  "])
    assert os.listdir(tmp_path) == []


def test_trained_vocabulary_has_the_form_of_the_reference(tmp_path, tiny_vocab):
    tokenizer = train_vocabulary({"en": ENGLISH, "fa": PERSIAN}, tmp_path / "new" / "vocab.json", text_tokens=120)
    document = json.loads(tokenizer.path.read_text(encoding="utf-8"))
    example = json.loads(tiny_vocab.read_text(encoding="utf-8"))
    assert {key: document[key] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")} == {
        key: example[key] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    }
    assert [set(token) for token in document["added_tokens"]] == [set(example["added_tokens"][0])] * 6
    ids = document["model"]["vocab"]
    special = ("[STOP]", "[UNK]", "[SPACE]", "[START]", "[en]", "[fa]")
    assert [ids[token] for token in special] == [0, 1, 2, 117, 118, 119]
    assert tokenizer.text_tokens == 120
    assert tokenizer.languages == ("en", "fa")


def test_training_does_not_depend_on_the_order_of_texts(tmp_path):
    shuffled = PERSIAN * 2
    random.Random(0).shuffle(shuffled)
    one = train_vocabulary({"en": ENGLISH, "fa": PERSIAN * 2}, tmp_path / "one.json", text_tokens=200)
    two = train_vocabulary({"fa": shuffled, "en": reversed(ENGLISH)}, tmp_path / "two.json", text_tokens=200)
    assert one.path.read_bytes() == two.path.read_bytes()


def test_a_size_below_the_characters_is_refused_with_the_least_possible(tmp_path):
    with pytest.raises(VocabularyError, match="must have at least 20 tokens"):
        train_vocabulary({"en": ENGLISH}, tmp_path / "vocab.json", text_tokens=10)
    assert train_vocabulary({"en": ENGLISH}, tmp_path / "vocab.json", text_tokens=20).text_tokens == 20


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=30))
def test_words_are_encoded_as_they_were_merged_in_training(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("trained") / "vocab.json"
    tokenizer = train_vocabulary({"en": words}, path, text_tokens=40)
    merges = [tuple(merge.split(" ")) for merge in json.loads(path.read_text(encoding="utf-8"))["model"]["merges"]]
    for word in words:
        symbols = list(word)
        for merge in merges:
            symbols = merge_symbols(symbols, merge)
        ids = read_ids(path)
        assert tokenizer.encode_cleaned(word, "en")[1:] == [ids[symbol] for symbol in symbols]
