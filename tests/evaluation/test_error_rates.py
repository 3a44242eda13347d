"""Word and character error rates against known values."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.evaluation.scores import Errors, add_errors, count_edits, score_transcript


@pytest.mark.parametrize(
    ("said", "heard", "edits"),
    [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("abc", "", 3), ("", "", 0), ("intention", "execution", 5), ("same", "same", 0)],
)  # fmt: skip
def test_known_distances(said, heard, edits):
    assert count_edits(said, heard) == edits


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
    assert words == Errors(2, 5)
    # cat to bat, and " oclock".
    assert characters == Errors(1 + 7, len("the cat sat at three"))
    assert score_transcript("four words are here", "", "en")[0].rate == 1.0


def test_rates_of_many_weigh_long_sentences_more():
    assert add_errors([Errors(1, 1), Errors(0, 9)]).rate == pytest.approx(0.1)
    assert Errors(3, 0).rate is None
