"""What spoken pieces tell about themselves: doubts, retries, and when each word is said."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.inference.following import (
    Following,
    TextFollower,
    choose_take,
    doubt_length,
    doubt_path,
    find_paths,
    join_heads,
    measure_distances,
)
from myxtts.inference.generation import GeneratedRow, Row
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import STREAM_CODES, load_synthesizer
from myxtts.inference.voices import Voice
from myxtts.text.tokenizer import Tokenizer
from tests.inference.builders import VOCABULARY, build_synthesizer

BLANK = Voice(np.zeros((32, 64), np.float32), np.zeros(0, np.float32))
TOKENIZER = Tokenizer(VOCABULARY)


def look_at(tokens, count=None):
    """Attention of codes that each look at one token."""
    attention = np.full((len(tokens), count or max(tokens) + 1), 0.01, np.float32)
    attention[np.arange(len(tokens)), tokens] = 0.8
    return attention


def test_a_path_goes_through_the_text_and_never_back():
    straight = [0, 1, 1, 2, 3, 3, 4, 5]
    back = [0, 1, 2, 3, 1, 2, 3, 4, 5]
    (share,), (path,) = find_paths(look_at(straight)[None])
    assert path.tolist() == straight
    assert share == pytest.approx(0.8)
    (share,), (path,) = find_paths(look_at(back)[None])
    assert (np.diff(path) >= 0).all()
    assert (path[0], path[-1]) == (0, 5)
    assert share == pytest.approx((0.8 * 7 + 0.01 * 2) / 9, abs=1e-6)


def test_the_heads_that_follow_the_text_are_found_among_others():
    tokens = [0, 1, 2, 3, 4, 5, 6, 7]
    draw = np.random.default_rng(1).dirichlet(np.ones(8), (3, 8)).astype(np.float32)
    stuck = look_at([3] * 8, 8)
    joined, follows = join_heads(np.stack([*draw * 0.3, stuck, look_at(tokens), look_at(tokens) / 2]))
    assert follows
    np.testing.assert_allclose(joined, look_at(tokens), atol=1e-6)
    assert not join_heads(np.full((2, 30, 20), 0.02, np.float32))[1]


def find_doubts(tokens, count):
    words = TextFollower(None, TOKENIZER).find_words(TOKENIZER.encode("ab cd ef gh", "en"))
    attention = look_at(tokens, count)
    path = find_paths(attention[None])[1][0]
    on_path = float(attention[np.arange(len(path)), path].sum() / attention.max(1).sum())
    return [*doubt_length(len(tokens), words), *doubt_path(attention, path, on_path, words)]


def test_words_left_out_repeated_and_babble_are_doubted_and_nothing_else():
    ids = TOKENIZER.encode("ab cd ef gh", "en")
    count = len(ids) + 2
    words = TextFollower(None, TOKENIZER).find_words(ids)
    assert [word.text for word in words] == ["ab", "cd", "ef", "gh"]
    assert [TOKENIZER.decode(ids[word.first - 1 : word.end - 1]) for word in words] == ["ab", "cd", "ef", "gh"]
    whole = [token for token in range(count) for _ in range(2)]
    assert find_doubts(whole, count) == []
    without = [token for token in whole if not words[2].first <= token < words[2].end]
    assert any("missing: ef" in doubt for doubt in find_doubts(without, count))
    twice = [*whole[: 2 * words[2].end], *whole[2 * words[1].first :]]
    assert any("goes back" in doubt for doubt in find_doubts(twice, count))
    assert find_doubts(whole * 4, count)[0] == "it is too long for its text"
    assert find_doubts(whole[:4], count)[0] == "it is too short for its text"
    lost = look_at([*whole, *[count - 1] * 12], count)
    lost[-12:] = 0.01
    path = find_paths(lost[None])[1][0]
    assert list(doubt_path(lost, path, 1.0, words)) == ["a part of it has nothing to do with its text"]


def test_words_are_timed_as_they_are_written():
    text = "Ab, (cd) 12 - ef"
    row = Row(tuple(TOKENIZER.encode(text, "en")), BLANK, (0, 0))
    follower = TextFollower(None, TOKENIZER)
    read = follower.find_words(row.ids)
    assert [word.text.strip(",()") for word in read] == ["ab", "cd", "twelve", "ef"]
    # Two codes for each token.
    path = np.repeat(np.arange(len(row.ids) + 2), 2)
    said = GeneratedRow(path, np.zeros((len(path), 1)), True, following=Following(path, (), 0.0))
    timed = follower.time_words(text, row, said, 1.25)
    assert [word.word for word in timed] == ["Ab,", "(cd)", "12", "ef"]
    # At the usual speed a code is 1,024 samples at 22.05 kHz.
    expected = np.array([[word.first, word.end] for word in read]) * (2 * 1024 / 22050 / 1.25)
    np.testing.assert_allclose([word[1:] for word in timed], expected)
    assert timed[0].shift(2.0) == ("Ab,", timed[0].start_s + 2, timed[0].end_s + 2)


class Takes:
    """In place of a follower: doubts all takes but those of some numbers, and likes later ones better."""

    def __init__(self, good=()):
        self.good, self.numbers = good, []

    def follow(self, row, said):
        number = row.key[1] >> 20
        self.numbers.append(number)
        return Following(np.zeros(len(said.codes_M), np.int64), () if number in self.good else ("odd",), 1e4 * number)


@pytest.fixture
def model(monkeypatch):
    model = build_synthesizer(decoder=False)
    model._is_small = False
    return model


def say(model, takes, **settings):
    model._follower = takes
    return model.speak("Hello.", BLANK, "en", SpeechSettings(max_codes=8, temperature=2.0, **settings))


def test_doubtful_pieces_are_said_again_until_one_is_not_and_the_best_is_kept(model):
    first = say(model, Takes(), retries=0)
    fine = Takes(good=(0,))
    assert say(model, fine, retries=5).samples.tobytes() == first.samples.tobytes()
    assert fine.numbers == [0], "nothing was doubted"
    odd = Takes()
    last = say(model, odd, retries=5)
    assert odd.numbers == [0, 1, 2, 3, 4, 5]
    assert last.pieces[0].doubts == ("odd",)
    assert last.samples.tobytes() != first.samples.tobytes()
    second = Takes(good=(1,))
    assert say(model, second, retries=9).pieces[0].doubts == ()
    assert second.numbers == list(range(9)), "as many as fit into a batch, and no more batches"
    greedy = Takes()
    say(model, greedy, retries=5, greedy=True)
    assert greedy.numbers == []
    usual = Takes()
    say(model, usual)
    assert usual.numbers == list(range(8))


def test_a_small_model_says_all_takes_at_once_and_keeps_the_best(model):
    model._is_small, takes = True, Takes(good=range(8))
    assert say(model, takes).pieces[0].doubts == ()
    assert takes.numbers == list(range(8))
    model._is_small = False
    only_last = say(model, Takes(good=(7,)))
    model._is_small = True
    assert say(model, takes).samples.tobytes() == only_last.samples.tobytes()


def test_a_stream_looks_only_where_retries_are_asked_for(model):
    for retries, numbers in ((None, []), (0, []), (1, [0, 1])):
        model._follower = takes = Takes()
        settings = SpeechSettings(max_codes=8, temperature=2.0, retries=retries)
        chunks = list(model.stream("Hello.", BLANK, "en", settings, chunk_codes=4))
        assert takes.numbers == numbers
        np.testing.assert_allclose(
            np.concatenate([chunk.samples for chunk in chunks]),
            say(model, Takes(), retries=retries or 0).samples,
            atol=1e-4,
        )


def test_a_recogniser_decides_where_there_is_one(model):
    answers, heard = [0.5, 0.25, 1.0, *[0.5] * 5], []

    def check(text, samples, rate_hz):
        heard.append((text, rate_hz, len(samples)))
        return answers[len(heard) - 1]

    model._check = check
    speech = say(model, Takes(good=(0, 2)))
    assert speech.pieces[0].doubts == ("by the recogniser its word error rate is 25%",)
    assert [each[:2] for each in heard] == [("Hello.", 22050)] * 8


def test_words_keep_their_place_in_the_sound_whatever_makes_it_and_however_fast():
    for decoder in (True, False):
        model, takes = build_synthesizer(decoder=decoder), {}
        for speed in (1.0, 2.0):
            settings = SpeechSettings(greedy=True, max_codes=12, retries=0, speed=speed)
            voice = BLANK if not decoder else replace(BLANK, speaker_G=np.zeros(64, np.float32))
            takes[speed] = model.speak("Hello you.", voice, "en", settings, timed=True)
        (usual,), (fast,) = (speech.pieces for speech in takes.values())
        assert usual.words[-1].end_s > 0
        np.testing.assert_allclose(
            [word[1:] for word in usual.words], [np.multiply(word[1:], 2) for word in fast.words]
        )
        # In whole codes, whether or not the last one, STOP, has a sound.
        codes = np.array([word[1:] for word in usual.words]) * 22050 / 1024
        np.testing.assert_allclose(codes, codes.round(), atol=1e-6)


@pytest.fixture(scope="module")
def base():
    return load_synthesizer("base", verify_checksums=False)


def test_the_base_voice_is_believed_where_it_says_its_text_and_doubted_where_not(base):
    voice, follower = base.find_voice(), TextFollower(base.xtts.gpt, base.tokenizer)
    text = "He was a very old man, and he had seen many things."
    row = Row(tuple(base.tokenizer.encode(text, "en")), voice, (0, 0))
    (said,) = base._generator.generate([row], SpeechSettings(temperature=0.5, repetition_penalty=1.0))
    fine = follower.follow(row, said)
    assert fine.doubts == ()
    times = follower.time_words(text, row, said, 1.0)
    starts = [word.start_s for word in times]
    assert [word.word for word in times] == text.split()
    assert starts == sorted(starts)
    assert 0.05 < starts[1] < starts[6] < starts[-1] < len(said.codes_M) * 1024 / 22050 - 0.2
    half, third = len(said.codes_M) // 2, len(said.codes_M) // 3
    for changed in (
        np.concatenate([said.codes_M[:third], said.codes_M[2 * third :]]),
        np.concatenate([said.codes_M[:half], said.codes_M[third:half], said.codes_M[third:]]),
        np.concatenate([said.codes_M[:-1], np.arange(40) * 97 % 4096, said.codes_M[-1:]]),
        said.codes_M[:third],
    ):
        given = tf.constant(voice.prompt_PC[None]), tf.constant([row.ids]), tf.constant(changed[None], tf.int32)
        latents = base.xtts.gpt.compute_latents(*given)[0].numpy()
        odd = replace(said, codes_M=changed, latents_MC=latents)
        odd = replace(odd, following=follower.follow(row, odd))
        assert odd.is_doubted
        assert choose_take([odd, replace(said, following=fine), odd], np.zeros((0, 1))).following is fine


def test_what_most_takes_say_is_kept_however_slowly_they_say_it():
    vectors = np.eye(8, dtype=np.float32)
    said = [[0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [0, 5, 6, 3]]
    far = measure_distances([vectors[codes] for codes in said])
    assert far.mean() == pytest.approx(1)
    assert far[3] > 1.5 * far[:3].max()

    def choose(*scores):
        takes = []
        for codes, score in zip(said, scores, strict=True):
            # The last code, STOP, has no vector.
            take = GeneratedRow(np.array([*codes, 9], np.int32), np.zeros((1, 1), np.float32), True)
            takes.append(replace(take, following=Following(np.zeros(1, np.int64), (), score)))
        chosen = choose_take(takes, vectors)
        return [take is chosen for take in takes].index(True)

    assert choose(0.0, 2.0, 0.0, 3.0) == 1
    assert choose(0.0, 1.0, 0.0, 99.0) == 3


def join(model, takes, first_codes=None, **settings):
    """The chunks of a text beside others', its takes and the longest step of its sound, in codes."""
    model._follower, start, steps = takes, model.vocoder.start, [0]

    def listen(*asked):
        rendering, heard = start(*asked), [0]
        render = rendering.render

        def count(codes_M, latents_MC, *, is_last):
            steps.append(len(codes_M) - heard[-1])
            heard.append(len(codes_M))
            return render(codes_M, latents_MC, is_last=is_last)

        rendering.render = count
        return rendering

    model.vocoder.start = listen
    settings = SpeechSettings(temperature=2.0, **settings)
    chunks, turns = [], 0
    for chunk in model.join_batch("Hello.", BLANK, "en", settings, first_codes=first_codes):
        turns += 1
        chunks.append(chunk)
        model.batch.step()
    model.vocoder.start = start
    return np.concatenate([chunk.samples for chunk in chunks]), turns, max(steps)


@pytest.mark.parametrize("is_small", [False, True])
def test_takes_of_one_are_said_beside_the_codes_of_others(model, is_small, monkeypatch):
    model._is_small = is_small
    expected = say(model, Takes(), retries=2).samples
    monkeypatch.setattr(model._generator, "generate", None)
    takes = Takes()
    samples, turns, _ = join(model, takes, retries=2, max_codes=8)
    assert takes.numbers == [0, 1, 2]
    np.testing.assert_allclose(samples, expected, atol=1e-4)
    assert turns > (8 if is_small else 16), "a code is a turn, and doubtful takes come after the first"
    assert model.batch.saying == model.batch.waiting == []
    fine = Takes(good=(0, 1, 2))
    join(model, fine, retries=2, max_codes=8)
    assert fine.numbers == ([0, 1, 2] if is_small else [0])


@pytest.mark.parametrize(("retries", "first_codes"), [(0, None), (1, None), (1, 6), (0, 6)])
def test_sound_is_made_a_second_at_a_turn(model, retries, first_codes):
    _, _, longest = join(model, Takes(), first_codes, retries=retries, max_codes=45, repetition_penalty=0.1)
    assert 0 < longest <= STREAM_CODES


@pytest.mark.parametrize(("retries", "first_codes"), [(0, None), (2, None), (0, 6)])
def test_who_stops_listening_has_no_sentence_in_the_batch_any_more(model, retries, first_codes):
    settings = SpeechSettings(temperature=2.0, retries=retries)
    chunks = model.join_batch("Hello. Good morning.", BLANK, "en", settings, first_codes=first_codes)
    next(chunks)
    model.batch.step()
    assert model.batch.saying
    chunks.close()
    assert model.batch.saying == model.batch.waiting == []
