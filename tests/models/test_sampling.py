"""The way from logits to a code."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.decoding import Greedy, Sampling, choose_code, shape_scores
from tests.models.reference import load_case, load_facts

SETTINGS = ["v2_release", "inference_default", "config_default", "topp_only"]


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_are_the_references(name):
    arrays, numbers = load_case("j_logits_processors"), load_facts("j_logits_processors")["config"]["sets"][name]
    seen = np.zeros(arrays["in/logits"].shape, bool)
    np.put_along_axis(seen, arrays["in/input_ids"], True, 1)
    rule = Sampling(temperature=numbers["t"], top_k=numbers["k"], top_p=numbers["p"], repetition_penalty=numbers["rp"])
    scores = shape_scores(tf.constant(arrays["in/logits"]), tf.constant(seen), rule).numpy()
    expected = arrays[f"out/scores_{name}"]
    np.testing.assert_array_equal(np.isfinite(scores), np.isfinite(expected))
    np.testing.assert_allclose(scores, expected, atol=1e-4)


LOGITS = tf.math.log(tf.constant([[0.5, 0.25, 0.15, 0.1]]))
NOTHING_SEEN = tf.zeros([1, 4], tf.bool)
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


def choose(rule, draw, logits=LOGITS, seen=NOTHING_SEEN):
    return int(choose_code(logits, seen, rule, tf.constant([draw]))[0])


def test_a_draw_falls_on_codes_by_their_share():
    draws = np.linspace(0, 1, 1000, endpoint=False, dtype=np.float32)
    chosen = [choose(PLAIN, draw) for draw in draws[::20]]
    assert [chosen.count(code) / len(chosen) for code in range(4)] == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.03)


@pytest.mark.parametrize("draw", [0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
def test_removed_codes_never_come(draw):
    assert choose(PLAIN._replace(top_k=1), draw) == 0
    assert choose(PLAIN._replace(top_p=0.1), draw) == 0
    reversed_logits = tf.reverse(LOGITS, [1])
    assert choose(PLAIN._replace(top_k=1), draw, reversed_logits) == 3


def test_equal_codes_at_the_edge_of_top_k_all_stay():
    scores = shape_scores(tf.constant([[3.0, 2.0, 2.0, 1.0]]), NOTHING_SEEN, PLAIN._replace(top_k=2)).numpy()
    assert np.isfinite(scores).tolist() == [[True, True, True, False]]


def test_greedy_takes_the_best_after_the_penalty():
    logits = tf.constant([[2.0, 1.5, -1.0, -4.0]])
    seen = tf.constant([[True, False, True, False]])
    assert choose(Greedy(), 0.0, logits, seen) == 0
    assert choose(Greedy(2.0), 0.0, logits, seen) == 1
