"""Dilated convolutions have the gradients of what they compute."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.waveform import convolve


def differentiate(function, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
        loss = tf.reduce_sum(outputs * tf.cos(tf.range(float(tf.size(outputs).numpy())).numpy().reshape(outputs.shape)))
    return outputs, tape.gradient(loss, inputs)


def convolve_by_taps(x_BTI, kernel_KIO, dilation):
    """The same as a sum over taps, which TensorFlow can differentiate."""
    taps = kernel_KIO.shape[0]
    side = taps // 2 * dilation
    padded = tf.pad(x_BTI, [[0, 0], [side, side], [0, 0]])
    time = x_BTI.shape[1]
    return tf.add_n([padded[:, tap * dilation : tap * dilation + time] @ kernel_KIO[tap] for tap in range(taps)])


@pytest.mark.parametrize(("dilation", "taps", "time"), [(1, 3, 10), (3, 3, 10), (3, 7, 11), (5, 11, 12)])
def test_values_and_gradients_are_those_of_a_sum_over_taps(dilation, taps, time):
    draw = np.random.default_rng(0)
    x, kernel = (tf.constant(draw.normal(size=shape), tf.float32) for shape in ((2, time, 3), (taps, 3, 4)))
    found, found_gradients = differentiate(lambda x, kernel: convolve(x, kernel, dilation), x, kernel)
    wanted, wanted_gradients = differentiate(lambda x, kernel: convolve_by_taps(x, kernel, dilation), x, kernel)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    for left, right in zip(found_gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
