from pathlib import Path

import numpy as np
import pytest

from myxtts.data.corpus import Corpus
from myxtts.data.texts import LEAST_MERGES, keep_vocabulary, make_vocabulary
from myxtts.errors import CorpusError, VocabularyError
from myxtts.text.tokenizer import Tokenizer
from tests.data.shared import make_clips


def make_corpus(*texts: tuple[str, str]) -> Corpus:
    """Clips with these languages and texts."""
    names = [f"{number}.wav" for number in range(len(texts))]
    return make_clips(
        Path("corpus"), names, text=[text for _, text in texts], language=[language for language, _ in texts]
    )


ENGLISH = ("en", "she sells sea shells on the sea shore")
PERSIAN = ("fa", "این یک متن کوتاه است")


def test_a_vocabulary_knows_every_text_it_was_made_from(tmp_path):
    tokenizer = make_vocabulary(make_corpus(ENGLISH, PERSIAN, ("tlh", "ß")), tmp_path / "vocab.json", most_tokens=6681)
    assert tokenizer.languages == ("en", "fa")
    for language, text in (ENGLISH, PERSIAN):
        assert tokenizer.find_unknown_characters(tokenizer.clean(text, language)) == ()
    assert tokenizer.find_unknown_characters("ß") == ("ß",)


def test_it_grows_with_the_texts_up_to_what_the_model_has_room_for(tmp_path):
    random = np.random.default_rng(0)
    texts = [("en", " ".join("".join(random.choice(list("abcdefgh"), 5)) for _ in range(90))) for _ in range(300)]
    few, many = make_corpus(*texts[:50]), make_corpus(*texts)
    sizes = [make_vocabulary(c, tmp_path / "v.json", most_tokens=6681).text_tokens for c in (few, many)]
    capped = make_vocabulary(many, tmp_path / "v.json", most_tokens=100).text_tokens
    assert LEAST_MERGES < sizes[0] < LEAST_MERGES + 50
    assert sizes[0] < sizes[1] < 6681
    assert capped == 100


def test_a_run_keeps_its_vocabulary(tmp_path):
    other = ("en", "and some more")
    path = keep_vocabulary(make_corpus(ENGLISH, other, PERSIAN), tmp_path / "run", most_tokens=6681)
    before = path.stat()
    again = keep_vocabulary(make_corpus(other, PERSIAN, ENGLISH), tmp_path / "run", most_tokens=999)
    assert again == path == tmp_path / "run" / "vocab.json"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "texts", [[ENGLISH], [ENGLISH, ("en", PERSIAN[1])], [ENGLISH, PERSIAN, PERSIAN], [PERSIAN, ("en", "other")]]
)
def test_a_vocabulary_of_other_texts_is_refused(tmp_path, texts):
    keep_vocabulary(make_corpus(ENGLISH, PERSIAN), tmp_path, most_tokens=6681)
    with pytest.raises(CorpusError, match=rf"made from 2 texts.* there are {len(texts)} now .*--reset-training"):
        keep_vocabulary(make_corpus(*texts), tmp_path, most_tokens=6681)


def test_a_vocabulary_that_somebody_put_there_is_taken(tmp_path):
    make_vocabulary(make_corpus(PERSIAN), tmp_path / "vocab.json", most_tokens=6681)
    path = keep_vocabulary(make_corpus(ENGLISH), tmp_path, most_tokens=6681)
    assert Tokenizer(path).languages == ("fa",)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(VocabularyError, match=r"file cannot be written to.*--checkpoint-dir"):
        keep_vocabulary(make_corpus(ENGLISH), tmp_path / "file", most_tokens=6681)
