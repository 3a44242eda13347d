import numpy as np
import pytest

from myxtts.data import corpus
from myxtts.data import corpus as text_ids
from myxtts.data.corpus import collect_text_ids, digest_parts
from myxtts.errors import CorpusError
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary
from tests.data.reading import VOCABULARY


def collect(texted, folder, vocabulary=VOCABULARY):
    return collect_text_ids(texted.corpus, vocabulary, workers=0, folder=folder)


def refuse_tokenising(*arguments):
    raise AssertionError("texts are tokenised again")


DAMAGES = {
    "none": lambda file, ids: None,
    "torn": lambda file, ids: file.write_bytes(file.read_bytes()[:-40]),
    "empty": lambda file, ids: file.write_bytes(b""),
    "longer": lambda file, ids: file.write_bytes(file.read_bytes() + b"x"),
    "flipped bit": lambda file, ids: file.write_bytes(file.read_bytes().replace(ids.tobytes(), (ids ^ 1).tobytes())),
    "ids beyond the vocabulary": lambda file, ids: file.write_bytes(
        digest_parts(np.full_like(ids, 60_000).data).encode() + np.full_like(ids, 60_000).tobytes()
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("corpus", ["mixed", "demo"])
def test_ids_are_the_tokenizer_s(corpus, workers, request, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(text_ids, "_WORTH_A_WORKER", 5)
    clips = request.getfixturevalue(corpus).corpus
    vocabulary = VOCABULARY if corpus == "mixed" else next(tmp_path_factory.getbasetemp().glob("demo*/vocab.json"))
    ids = collect_text_ids(clips, vocabulary, workers=workers, folder=None)
    assert ids.ids.dtype == np.uint16
    tokenizer = Tokenizer(vocabulary)
    expected = [tokenizer.encode(clips.text[text], clips.language[text]) for text in range(len(ids))]
    assert [ids[text].tolist() for text in range(len(ids))] == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(damage, mixed, tmp_path, monkeypatch):
    first = collect(mixed, tmp_path)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    DAMAGES[damage](file, first.ids)
    assert (file.read_bytes() == before) == (damage == "none")
    assert np.array_equal(collect(mixed, tmp_path).ids, first.ids)
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.setattr(text_ids, "_fill_ids", refuse_tokenising)
    assert np.array_equal(collect(mixed, tmp_path).ids, first.ids)


def test_other_texts_have_their_own_file(mixed, lj, tmp_path):
    collect(mixed, tmp_path)
    ids = collect(lj, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(ids.ids, lj.ids.ids)


def test_a_folder_that_cannot_be_written_costs_only_time(mixed, tmp_path, caplog):
    folder = tmp_path / "a file"
    folder.touch()
    assert np.array_equal(collect(mixed, folder).ids, mixed.ids.ids)
    assert "the next start makes them anew" in caplog.text


def test_lengths_of_another_vocabulary_are_refused(mixed, tmp_path):
    other = train_vocabulary({"en": [mixed.corpus.text[0]]}, tmp_path / "other.json", text_tokens=60)
    with pytest.raises(CorpusError, match="Scan the corpus with this vocabulary"):
        collect(mixed, None, vocabulary=other.path)


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_padding_and_taking(mixed, at_once, monkeypatch):
    monkeypatch.setattr(corpus, "_TAKEN_AT_ONCE", at_once)
    ids = mixed.ids
    clips = np.array([7, -1, 0, 3], np.int32)
    width = int(mixed.corpus.tokens.max())
    padded = ids.pad(clips, width)
    taken = ids.take(np.array([7, 0, 3]))
    assert padded.dtype == np.int32
    for row, clip in enumerate(clips.tolist()):
        expected = ids[clip].tolist() if clip >= 0 else []
        assert padded[row].tolist() == expected + [0] * (width - len(expected))
    assert [taken[text].tolist() for text in range(len(taken))] == [ids[clip].tolist() for clip in (7, 0, 3)]
    last = len(ids) - 1
    assert ids.pad(np.array([last]), width)[0, : len(ids[last])].tolist() == ids[last].tolist()
