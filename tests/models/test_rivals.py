"""The decoder's rivals, and how speech is compared with a recording."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.discriminators import (
    SPEECH_MEL,
    Rivals,
    RivalSize,
    fold,
    measure_deception,
    measure_feature_distance,
    measure_mel_distance,
)
from myxtts.models.weights import find_variable
from myxtts.models.xtts import initialise_weights

SAMPLES = 4096
SIZE = RivalSize(width=2, periods=(2, 3), fft_samples=(512,))


@pytest.fixture(scope="module")
def rivals():
    rivals = Rivals(SIZE)
    initialise_weights(rivals, 1)
    return rivals


def make_tones(rows=2):
    time = np.arange(SAMPLES) / SPEECH_MEL.rate_hz
    return tf.constant(0.5 * np.sin(2 * np.pi * np.array([[440.0], [1500.0]])[:rows] * time), tf.float32)


def test_every_weight_is_listed_and_starts_with_the_length_of_its_directions(rivals):
    listed = rivals.list_weights()
    assert len({weight.variable for weight in listed}) == len(listed) == len(rivals.variables)
    for weight in listed:
        variable = find_variable(rivals, weight.variable)
        assert tuple(variable.shape) == weight.variable_shape, weight.key
        if weight.key.endswith("lengths"):
            directions = find_variable(rivals, weight.start.source).numpy()
            np.testing.assert_allclose(variable.numpy(), np.sqrt((directions**2).sum((0, 1, 2))), rtol=1e-5)


def test_a_fold_lays_the_samples_of_a_period_side_by_side():
    folded = fold(tf.constant([[0.0, 1, 2, 3, 4, 5, 6]]), 3)[0, ..., 0]
    np.testing.assert_array_equal(folded, [[0, 1, 2], [3, 4, 5], [6, 5, 4]])


def test_each_row_is_judged_by_itself(rivals):
    wav = make_tones()
    both, alone = rivals(wav), rivals(wav[1:])
    for left, right in zip(both, alone, strict=True):
        for said, expected in zip(left, right, strict=True):
            np.testing.assert_allclose(said[1:], expected, atol=1e-5)
            assert said.dtype == tf.float32


def test_distances_are_zero_for_the_same_and_grow_with_the_difference(rivals):
    tones = make_tones()
    louder = tones * tf.constant([[1.0], [1.5]])
    distance = measure_mel_distance(tones, louder).numpy()
    assert distance[0] == 0
    assert 0 < distance[1] <= np.log(1.5) * 1.001
    features = measure_feature_distance(rivals(tones), rivals(louder)).numpy()
    assert features[0] == 0
    assert features[1] > 0


def test_silence_has_a_finite_gradient(rivals):
    silence = tf.zeros([1, SAMPLES])
    with tf.GradientTape() as tape:
        tape.watch(silence)
        loss = measure_mel_distance(make_tones(1), silence) + measure_deception(rivals(silence))
    assert np.isfinite(tape.gradient(loss, silence).numpy()).all()
