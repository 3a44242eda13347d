import numpy as np
import pytest

from myxtts.data import corpus as columns
from myxtts.data.scan import scan_corpus
from myxtts.text.tokenizer import Tokenizer
from tests.data.reading import VOCABULARY
from tests.data.shared import write_clips, write_metadata


def test_ids_are_the_tokenizer_s_and_only_those_of_the_clips_that_are_kept(tmp_path):
    write_clips(tmp_path, ["a", "b", "c", "d"], seconds=0.5)
    write_metadata(tmp_path, "a|Hello world.", "b|Hello ŵorld.", "c|", "d|Fourscore and seven years ago.")
    result, tokenizer = scan_corpus(tmp_path, vocabulary=VOCABULARY, processes=0), Tokenizer(VOCABULARY)
    assert list(result.corpus.audio) == ["wavs/a.wav", "wavs/d.wav"]
    told = [(drop.reason, drop.detail) for drop in result.drops.drops]
    assert told == [("unknown_characters", "'ŵ' U+0175"), ("text_empty", "")]
    assert result.corpus.ids.ids.dtype == np.uint16
    expected = [tokenizer.encode(text, "en") for text in result.corpus.text]
    assert [result.corpus.ids[text].tolist() for text in range(2)] == expected
    assert result.corpus.tokens.tolist() == [len(ids) for ids in expected]


def test_processes_that_overtake_each_other_change_nothing(tmp_path):
    (tmp_path / "wavs").mkdir()
    write_clips(tmp_path, ["a"], seconds=0.5)
    lines = [f"{n}|{'word ' * (n % 7 + 1)}" for n in range(4100)]
    for n in range(len(lines)):
        (tmp_path / "wavs" / f"{n}.wav").symlink_to("a.wav")
    write_metadata(tmp_path, *lines)
    results = [
        scan_corpus(tmp_path, vocabulary=VOCABULARY, processes=n, index_folder=tmp_path / f"index{n}") for n in (0, 2)
    ]
    assert np.array_equal(results[0].corpus.ids.ids, results[1].corpus.ids.ids)
    assert np.array_equal(results[0].corpus.ids.offsets, results[1].corpus.ids.offsets)
    assert len(np.unique(results[0].corpus.tokens)) == 7


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_padding_and_taking(mixed, at_once, monkeypatch):
    monkeypatch.setattr(columns, "_TAKEN_AT_ONCE", at_once)
    ids = mixed.ids
    clips = np.array([7, -1, 0, 3], np.int32)
    width = int(mixed.tokens.max())
    padded = ids.pad(clips, width)
    taken = ids.take(np.array([7, 0, 3]))
    assert padded.dtype == np.int32
    for row, clip in enumerate(clips.tolist()):
        expected = ids[clip].tolist() if clip >= 0 else []
        assert padded[row].tolist() == expected + [0] * (width - len(expected))
    assert [taken[text].tolist() for text in range(len(taken))] == [ids[clip].tolist() for clip in (7, 0, 3)]
    last = len(ids) - 1
    assert ids.pad(np.array([last]), width)[0, : len(ids[last])].tolist() == ids[last].tolist()
