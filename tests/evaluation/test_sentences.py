"""Which sentences are spoken, and in whose voice."""

import numpy as np
import pytest

from myxtts.data.run_data import split_corpus
from myxtts.errors import EvaluationError
from myxtts.evaluation.sentences import (
    REFERENCE_SPEAKER,
    PromptKind,
    choose_part,
    choose_recordings,
    choose_sentences,
    find_other_voices,
)
from tests.data.shared import make_clips


def make_corpus(root, speakers, seconds):
    names, texts = ([form.format(n) for n in range(len(speakers))] for form in ("wavs/{}.wav", "text {}"))
    return make_clips(root, names, text=texts, speaker=speakers, samples=np.array(seconds) * 22050)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path, ["ana", "ana", "ana", "ben", "cat", "cat"], [2, 7, 5, 3, 4, 4])


def test_a_sentence_is_spoken_in_the_voice_of_the_longest_other_clip(corpus):
    sentences = choose_sentences(corpus, np.arange(6), 100)
    prompts = [sentence.prompts[0].name for sentence in sentences]
    assert prompts == ["1.wav", "2.wav", "1.wav", "3.wav", "5.wav", "4.wav"]
    same = [sentence.prompt_kind is PromptKind.SAME_CLIP for sentence in sentences]
    assert same == [False, False, False, True, False, False]
    assert (sentences[3].text, sentences[3].speaker, sentences[3].voice_speaker) == ("text 3", "ben", "ben")


def test_a_given_voice_speaks_sentences_from_all_over_the_clips(corpus, tmp_path):
    sentences = choose_sentences(corpus, np.arange(6), 3, [tmp_path / "me.wav"])
    assert [sentence.name for sentence in sentences] == ["wavs/0.wav", "wavs/2.wav", "wavs/5.wav"]
    assert {sentence.prompts for sentence in sentences} == {(tmp_path / "me.wav",)}
    assert {sentence.voice_speaker for sentence in sentences} == {REFERENCE_SPEAKER}
    assert list(choose_recordings(corpus, sentences, [tmp_path / "me.wav"])) == [REFERENCE_SPEAKER]


def test_a_part_is_the_one_that_training_sets_apart(tmp_path):
    corpus = make_corpus(tmp_path, ["ana"] * 50, [3] * 50)
    train, validation = split_corpus(corpus, seed=7)
    for name, clips in (("validation", validation), ("train", train), ("all", np.arange(50))):
        assert choose_part(corpus, name, 7).tolist() == clips.tolist()
    with pytest.raises(EvaluationError, match="--split"):
        choose_sentences(corpus, np.arange(0), None)


def test_every_speaker_is_met_by_a_few_recordings_and_all_that_are_said_again(tmp_path):
    corpus = make_corpus(tmp_path, ["ana"] * 40 + ["ben"], [3] * 41)
    found = choose_recordings(corpus, choose_sentences(corpus, np.array([1, 2]), None))
    assert {"wavs/1.wav", "wavs/2.wav", "wavs/0.wav", "wavs/39.wav"} <= set(found["ana"])
    assert {speaker: len(files) for speaker, files in found.items()} == {"ana": 12, "ben": 1}


def test_other_voices_are_folders_of_recordings(tmp_path):
    for name in ("eva/a/1.flac", "eva/2.WAV", "eva/notes.txt", "max/3.wav", "empty/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_other_voices(tmp_path)
    names = {speaker: sorted(path.name for path in files.values()) for speaker, files in found.items()}
    assert names == {"eva": ["1.flac", "2.WAV"], "max": ["3.wav"]}
    with pytest.raises(EvaluationError, match="--other-voices"):
        find_other_voices(tmp_path / "empty")
