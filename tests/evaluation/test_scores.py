"""How well a sentence was said: words and characters as they are compared, whose voice it is, the distance of mels."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.audio.griffin_lim import MARGIN_SAMPLES, reconstruct_phase, recover_magnitudes
from myxtts.audio.mels import compute_dvae_mel
from myxtts.audio.reading import read_clip
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.errors import UnsupportedLanguageError
from myxtts.evaluation import scores as mel_distance
from myxtts.evaluation.scores import (
    compare_voices,
    count_edits,
    join_words,
    measure_mel_distance_db,
    score_transcript,
    split_words,
    sum_alignment,
)


@pytest.mark.parametrize(
    ("language", "spellings"),
    [
        ("en", ["Dr. Smith's 3rd cat, in 1999!", "doctor smith’s third cat in nineteen ninety-nine", "DOCTOR SMITHS THIRD CAT IN NINETEEN NINETY NINE"]),
        ("en", ["A re-entry: 50%.", "a re entry, fifty percent"]),
        ("fa", ["می‌روم خانه، ۱۲ کتاب!", "می روم خانه دوازده کتاب", "ميروم خانه ۱۲ كتاب"]),
        ("de", ["Straße, 3 Bücher", "STRASSE drei bücher"]),
        ("zh-cn", ["我有3只猫。", "我有三只猫", "我 有 三 只 猫"]),
        ("ar", ["كِتَابٌ", "كتاب"]),
    ],
)  # fmt: skip
def test_spellings_that_sound_alike_are_the_same_words(language, spellings):
    first, *others = (split_words(text, language) for text in spellings)
    assert first
    for other in others:
        assert other == first


def test_words_are_parted_where_the_language_parts_them():
    assert split_words("Two words.", "en") == ["two", "words"]
    assert split_words("两个", "zh") == ["两", "个"]
    # Vowel signs of Hindi are part of a word.
    assert split_words("नमस्ते दुनिया", "hi") == ["नमस्ते", "दुनिया"]
    assert split_words(" ?! ...", "en") == []
    assert join_words(["two", "words"], "en") == "two words"
    assert join_words(["两", "个"], "zh") == "两个"
    with pytest.raises(UnsupportedLanguageError, match="xx"):
        split_words("words", "xx")


@settings(max_examples=60, deadline=None)
@given(st.text("abc", max_size=8), st.text("abcd", max_size=8))
def test_the_distance_is_the_one_of_the_definition(said, heard):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        replaced = distance(i - 1, j - 1) + (said[i - 1] != heard[j - 1])
        return min(replaced, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    assert count_edits(said, heard) == distance(len(said), len(heard))


def test_a_transcript_is_scored_in_words_and_characters():
    words, characters = score_transcript("The cat sat, at 3.", "the bat sat at three o'clock", "en")
    assert words == {"errors": 2, "length": 5}
    # cat to bat, and " oclock".
    assert characters == {"errors": 1 + 7, "length": len("the cat sat at three")}
    assert score_transcript("four words are here", "", "en")[0]["errors"] == 4


ANA, TWIN, BEN = np.array([1.0, 0.0]), np.array([0.8, 0.6]), np.array([0.0, 1.0])
VOICES = {"ana": {"1": ANA, "2": TWIN}, "ben": {"3": BEN}}


def test_a_clip_is_compared_with_the_other_recordings_of_its_speaker_and_with_everybody_else():
    assert compare_voices(VOICES, ANA, "ana", recording="1") == {"own": pytest.approx(0.8), "other": 0.0}
    assert compare_voices(VOICES, BEN, "ana", recording="x") == {"own": pytest.approx(0.316, abs=1e-3), "other": 1.0}
    # The only recording of its speaker, and the only speaker there is.
    assert compare_voices(VOICES, BEN, "ben", "3")["own"] is None
    assert compare_voices({"ana": VOICES["ana"]}, ANA, "ana", "1")["other"] is None


def align_slowly(distances, price):
    """The definition, cell by cell."""
    rows, columns = distances.shape
    best = {(0, 0): distances[0, 0]}
    for i in range(rows):
        for j in range(columns):
            if (i, j) != (0, 0):
                ways = (((i - 1, j - 1), 0.0), ((i - 1, j), price), ((i, j - 1), price))
                best[i, j] = min(best[place] + cost for place, cost in ways if place in best) + distances[i, j]
    return best[rows - 1, columns - 1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (7, 9), (23, 11)])
def test_the_alignment_is_the_best_one(shape):
    distances = np.random.default_rng(sum(shape)).random(shape)
    assert sum_alignment(distances, 0.2) == pytest.approx(align_slowly(distances, 0.2), rel=1e-12)


@pytest.fixture(scope="module")
def clips():
    """Five sentences of like length, spoken by one voice."""
    paths = sorted((demo_corpus_path() / "wavs").iterdir())[:24]
    return sorted((read_clip(path) for path in paths), key=len)[8:13]


def copy_like_a_codec(clip):
    """The clip from mels at a quarter of their rate, as a codec has them, by Griffin-Lim."""
    norms = np.ones(80, np.float32)
    mel, frames = compute_dvae_mel(clip[None], np.array([len(clip)]), norms)
    mel = mel.numpy()[0, : int(frames[0]) // 4 * 4]
    blurred = np.repeat(mel.reshape(-1, 4, 80).mean(1), 4, axis=0)
    samples = reconstruct_phase(recover_magnitudes(blurred[None], norms)[0].numpy(), 0)
    return samples[MARGIN_SAMPLES : MARGIN_SAMPLES + len(clip)]


def make_noise(seconds):
    return np.random.default_rng(0).normal(0, 0.05, round(seconds * 22050)).astype(np.float32)


def test_a_copy_is_nearer_than_what_is_no_copy(clips):
    clip = clips[0]
    seconds, half = len(clip) / 22050, len(clip) // 2
    copy = measure_mel_distance_db(clip, copy_like_a_codec(clip))
    others = {
        "noise ten times too long": make_noise(10 * seconds),
        "silence ten times too long": np.zeros(10 * len(clip), np.float32),
        "said twice": np.concatenate([clip, clip]),
        "the first half": clip[:half],
        "with a tail of silence": np.concatenate([clip, np.zeros_like(clip)]),
        "backwards": clip[::-1],
    }
    distances = {name: measure_mel_distance_db(clip, other) for name, other in others.items()}
    assert 0 < copy < 6
    assert min(distances.values()) > 1.7 * copy, (copy, distances)


def test_running_on_is_never_rewarded(clips):
    tails = [measure_mel_distance_db(clips[0], make_noise(seconds)) for seconds in (2, 4, 8, 16, 32)]
    assert tails == sorted(tails)


@pytest.mark.parametrize("pace", [0.9, 1.12])
def test_a_sentence_in_another_voice_and_pace_is_nearer_than_other_sentences_of_like_length(clips, pace):
    for clip in clips:
        other_voice = np.interp(np.arange(0, len(clip) - 1, pace), np.arange(len(clip)), clip).astype(np.float32)
        own = measure_mel_distance_db(clip, other_voice)
        assert own < min(measure_mel_distance_db(other, other_voice) for other in clips if other is not clip)


def test_a_clip_is_next_to_itself_at_any_loudness(clips):
    assert measure_mel_distance_db(clips[0], clips[0]) == pytest.approx(0, abs=1e-5)
    assert measure_mel_distance_db(clips[0], clips[0] * 0.5) < 0.3


def test_the_unit_is_the_difference_of_spectra_in_decibels(monkeypatch):
    # A tilt along the first cosine of 80 bands, 10 dB at its ends: 7.07 dB root mean square.
    bands = np.cos(np.pi / 80 * (np.arange(80) + 0.5)) * np.log(10.0)
    mels = iter([np.zeros((1, 80)), bands[None]])
    monkeypatch.setattr(mel_distance, "compute_log_mel", lambda samples: next(mels))
    silence = np.zeros(1, np.float32)
    assert measure_mel_distance_db(silence, silence) == pytest.approx(10.0 / np.sqrt(2.0), rel=1e-6)
