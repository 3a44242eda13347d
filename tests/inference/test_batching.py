"""Sentences that are said together: each as if it were alone, and none kept waiting by a long text."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.inference.batching import SentenceBatch, choose_code
from myxtts.inference.engine import DecodingEngine, read_weights
from myxtts.inference.engine_rows import EngineRows
from myxtts.inference.generation import CodeGenerator, Row, make_rule
from myxtts.inference.rows import RECENT, HeardRows, TensorRows
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.voices import Voice
from myxtts.models import decoding
from tests.inference.builders import build_reference_xtts

LONGEST = 70
"""Codes: the cache is arranged anew several times on the way."""
SETTINGS = [
    SpeechSettings(seed=3, max_codes=LONGEST, repetition_penalty=2.0),
    SpeechSettings(temperature=0.4, top_k=0, top_p=1.0, max_codes=RECENT + 5),
    SpeechSettings(greedy=True, max_codes=LONGEST),
    SpeechSettings(top_k=5, max_codes=9),
    SpeechSettings(top_p=0.3, max_codes=LONGEST - 3),
]


@pytest.fixture(scope="module")
def gpt():
    return build_reference_xtts().gpt


def make_row(gpt, index):
    draw = np.random.default_rng(index)
    prompt_PC = draw.normal(0, 1, (32, gpt.size.width)).astype(np.float32)
    ids = tuple(int(each) for each in draw.integers(1, 100, 3 + 7 * index))
    return Row(ids, Voice(prompt_PC, np.zeros(0, np.float32)), (5, index))


def say_all(batch):
    while batch.waiting or batch.saying:
        batch.step()


def open_batch(gpt, most_rows=8):
    return SentenceBatch(TensorRows(gpt, most_rows), gpt.size)


def test_a_sentence_says_the_same_alone_and_among_others_that_come_and_go(gpt):
    alone = []
    for index, settings in enumerate(SETTINGS):
        batch = open_batch(gpt)
        alone.append(batch.add(make_row(gpt, index), settings))
        say_all(batch)
        assert batch.codes == len(alone[-1].codes)
    batch, together = open_batch(gpt), []
    for index, settings in enumerate(SETTINGS):
        together.append(batch.add(make_row(gpt, index), settings, owner=index))
        for _ in range(3 * index):
            batch.step()
    leaving = batch.add(make_row(gpt, 9), SETTINGS[0], owner="who leaves")
    batch.step()
    assert leaving.place is not None
    batch.leave("who leaves")
    say_all(batch)
    for one, other in zip(alone, together, strict=True):
        assert one.codes == other.codes
        np.testing.assert_allclose(np.stack(one.latents), np.stack(other.latents), rtol=0, atol=1e-4)
    assert len({len(each.codes) for each in alone}) > 2, "they do not end together"
    assert batch.decoder.traces == 2, "whatever joins, nothing is compiled again"


def test_a_batch_says_what_the_graph_that_says_whole_sentences_does(gpt):
    for index, settings in enumerate(SETTINGS):
        batch = open_batch(gpt)
        sentence = batch.add(make_row(gpt, index), settings)
        say_all(batch)
        (whole,) = CodeGenerator(gpt).generate([sentence.row], settings)
        np.testing.assert_array_equal(sentence.codes, whole.codes_M)
        np.testing.assert_allclose(np.stack(sentence.latents), whole.latents_MC, rtol=0, atol=1e-4)
        assert sentence.stopped == whole.stopped


def test_a_code_is_chosen_as_in_the_graph():
    draw = np.random.default_rng(1)
    for settings in (*SETTINGS, SpeechSettings(top_p=0.0), SpeechSettings(top_k=1000)):
        logits_BV = draw.normal(0, 3, (200, 60)).astype(np.float32)
        seen_BV, draws_B = draw.random((200, 60)) < 0.3, draw.random(200).astype(np.float32)
        rule = make_rule(settings, 5.0)
        expected = decoding.choose_code(
            tf.constant(logits_BV), tf.constant(seen_BV), rule, tf.constant(draws_B[:, None])
        )
        penalty = settings.repetition_penalty or 5.0
        chosen = [
            choose_code(*row[:2], settings, penalty, row[2]) for row in zip(logits_BV, seen_BV, draws_B, strict=True)
        ]
        np.testing.assert_array_equal(chosen, expected)


class CountingRows:
    """Says code 2 for ever, and notes who is there."""

    most_rows = 8

    def __init__(self, size, failing_step=None):
        self._size, self._failing_step, self.steps, self.held = size, failing_step, [], set()

    def start(self, row, prompt_PC, ids):
        assert row not in self.held
        self.held.add(row)
        return self._answer(1)

    def step(self, rows, codes):
        assert set(rows) <= self.held
        self.steps.append(list(rows))
        if len(self.steps) == self._failing_step:
            raise OSError("broken")
        return self._answer(len(rows))

    def release(self, row):
        self.held.remove(row)

    def _answer(self, count):
        logits_BV = np.zeros((count, self._size.audio_tokens), np.float32)
        logits_BV[:, 2] = 9.0
        return HeardRows(logits_BV, np.zeros((count, self._size.width), np.float32))


def follow(batch, gpt, owner, rows=20, codes=5):
    settings = SpeechSettings(greedy=True, repetition_penalty=1.0, max_codes=codes)
    return batch.follow([make_row(gpt, 1)] * rows, settings, owner, None)


def test_a_long_text_leaves_places_and_then_takes_turns(gpt):
    batch = SentenceBatch(CountingRows(gpt.size), gpt.size)
    for owner in ("long", "second", "third", "fourth"):
        # Each asks for its first sentence, and with it for as many as there are places.
        next(follow(batch, gpt, owner))
        batch.step()
    owners = [each.owner for each in batch.saying]
    assert [owners.count(owner) for owner in ("long", "second", "third", "fourth")] == [4, 2, 1, 1]
    fifth = batch.add(make_row(gpt, 1), SpeechSettings(greedy=True, max_codes=3), "fifth")
    batch.step()
    assert fifth.place is None, "all places are taken"
    for _ in range(5):
        batch.step()
    assert len(fifth.codes) == 3, "the next place was for who had none, though others had asked before"


def test_who_leaves_frees_its_places_at_once_wherever_it_is(gpt):
    batch = SentenceBatch(CountingRows(gpt.size), gpt.size)
    next(follow(batch, gpt, "gone"))
    staying = batch.add(make_row(gpt, 1), SpeechSettings(greedy=True, max_codes=9), "staying")
    batch.step()
    assert (len(batch.decoder.held), len(batch.waiting)) == (5, 4)
    batch.leave("gone")
    assert (batch.decoder.held, batch.waiting, batch.saying) == ({staying.place}, [], [staying])
    say_all(batch)
    assert (len(staying.codes), batch.decoder.held) == (9, set())


def test_what_breaks_is_told_to_all_whom_it_hit_and_to_nobody_else(gpt):
    batch = SentenceBatch(CountingRows(gpt.size, failing_step=2), gpt.size)
    settings = SpeechSettings(greedy=True, max_codes=5)
    hit = [batch.add(make_row(gpt, 1), settings, owner) for owner in range(2)]
    batch.step()
    batch.step()
    later = batch.add(make_row(gpt, 1), settings, "later")
    say_all(batch)
    for sentence in hit:
        with pytest.raises(OSError, match="broken"):
            assert sentence.is_over
    assert (len(later.codes), batch.decoder.held) == (5, set())


def test_a_sentence_that_cannot_start_harms_nobody(gpt):
    settings = SpeechSettings(greedy=True, max_codes=5)
    weights = read_weights(gpt)
    for rows in (TensorRows(gpt, 2), EngineRows(DecodingEngine(gpt, weights), 2)):
        batch = SentenceBatch(rows, gpt.size)
        staying = batch.add(make_row(gpt, 1), settings, "staying")
        batch.step()
        wrong = replace(make_row(gpt, 1), voice=Voice(np.zeros((32, 3), np.float32), np.zeros(0, np.float32)))
        failing = batch.add(wrong, settings, "failing")
        say_all(batch)
        with pytest.raises(Exception):  # noqa: B017, PT011  each engine has its own words for it
            assert failing.is_over
        assert len(staying.codes) == 5
        later = batch.add(make_row(gpt, 2), settings, "later")
        say_all(batch)
        assert len(later.codes) == 5


def test_a_stream_shows_as_many_codes_as_it_was_asked_for(gpt):
    batch = SentenceBatch(CountingRows(gpt.size), gpt.size)
    settings = SpeechSettings(greedy=True, repetition_penalty=1.0, max_codes=40)
    shown = []
    for states in batch.follow([make_row(gpt, 1)] * 2, settings, "one", lambda: iter((4, 10, 19, 29, 39, 60))):
        for state in states:
            if state is None:
                batch.step()
                assert len(batch.saying) <= 1, "its sentences come one after another"
            else:
                shown.append((len(state.codes_M), state.is_last))
    assert shown == [(4, False), (10, False), (19, False), (29, False), (39, False), (40, True)] * 2
