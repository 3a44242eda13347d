import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.run_data import split_corpus
from tests.data.shared import make_clips


def make_corpus(names, folder):
    return make_clips(folder, names, samples=np.arange(len(names)) + 20000)


def list_validation(names, folder, seed=0):
    corpus = make_corpus(names, folder)
    return {corpus.audio[int(clip)] for clip in split_corpus(corpus, seed)[1]}


@given(clips=st.integers(1, 300), seed=st.integers(0, 2**63 - 1))
def test_every_clip_is_in_one_part(tmp_path_factory, clips, seed):
    corpus = make_corpus([f"wavs/{i}.wav" for i in range(clips)], tmp_path_factory.getbasetemp())
    train, validation = split_corpus(corpus, seed)
    assert sorted([*train, *validation]) == list(range(clips))
    assert len(train) >= 1
    assert list(train) == sorted(train)


@pytest.mark.parametrize(
    ("clips", "expected"),
    [(1, 0), (2, 1), (9, 1), (49, 4), (100, 4), (300, 6), (13_100, 262), (30_000, 512)],
)
def test_how_many(clips, expected, tmp_path):
    assert len(list_validation([f"{i}.wav" for i in range(clips)], tmp_path)) == expected


def test_another_seed_gives_another_split_and_another_folder_the_same(tmp_path):
    names = [f"wavs/{i}.wav" for i in range(500)]
    chosen = list_validation(names, tmp_path)
    assert chosen == list_validation(names, tmp_path / "elsewhere")
    assert chosen != list_validation(names, tmp_path, seed=1)
    assert chosen == list_validation(names[::-1], tmp_path), "the order of lines does not matter"


def test_few_clips_change_sides_when_the_corpus_grows(tmp_path):
    names = [f"wavs/{i}.wav" for i in range(5000)]
    before = list_validation(names, tmp_path)
    after = list_validation([*names, *(f"wavs/new_{i}.wav" for i in range(50))], tmp_path)
    assert len(before - after) <= 5


def test_the_choice_is_fixed_for_ever_and_said(tmp_path, caplog):
    caplog.set_level("INFO")
    chosen = list_validation([f"{i}.wav" for i in range(100)], tmp_path, seed=7)
    assert chosen == {"8.wav", "22.wav", "25.wav", "41.wav"}
    assert "Validation: 4 of 100 clips" in caplog.text
    assert "chosen by seed 7, such as 8.wav" in caplog.text
