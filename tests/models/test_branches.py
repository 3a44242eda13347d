"""What goes several ways comes together in one order, whatever TensorFlow could write over at the time."""

import numpy as np
import tensorflow as tf

from myxtts.models.sizes import DecoderSize
from myxtts.models.waveform import WaveformDecoder, average, hand_out

LARGE, SMALL = 2.0**24, 1.0
"""Of these, (SMALL + SMALL) + LARGE and (LARGE + SMALL) + SMALL differ."""


def test_sums_keep_their_order_when_a_later_buffer_is_the_free_one():
    """The first two are also results of the function, so that only the last may be written over."""

    @tf.function(autograph=False)
    def add(factor):
        ways = [tf.ones([4]) * SMALL * factor, tf.ones([4]) * SMALL * factor, tf.ones([4]) * LARGE * factor]
        return average(ways), ways[:2]

    mean, _ = add(tf.constant(1.0))
    np.testing.assert_array_equal(mean, np.float32(LARGE + 2 * SMALL) / np.float32(3))


def test_gradients_keep_their_order_when_a_later_buffer_is_the_free_one():
    @tf.function(autograph=False)
    def differentiate(factor):
        x = tf.ones([4]) * factor
        upstream = [tf.ones([4]) * SMALL * factor, tf.ones([4]) * SMALL * factor, tf.ones([4]) * LARGE * factor]
        with tf.GradientTape() as tape:
            tape.watch(x)
            ways = hand_out(x, 3)
        return tape.gradient(ways, x, output_gradients=upstream), upstream[:2]

    gradient, _ = differentiate(tf.constant(1.0))
    np.testing.assert_array_equal(gradient, np.float32(LARGE + 2 * SMALL))


def test_a_decoder_and_its_gradients_have_no_sum_in_any_order():
    decoder = WaveformDecoder(
        DecoderSize(latent_width=4, width=8, speaker_width=2, rates=(2,), kernels=(4,), block_dilations=(1,))
    )
    watched = [variable.value for variable in decoder.trainable_variables]

    @tf.function(autograph=False)
    def differentiate():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(decoder.decode_frames(tf.ones([1, 6, 4]), tf.zeros([1, 2])))
        return tape.gradient(loss, watched)

    sums = [each for each in differentiate.get_concrete_function().graph.get_operations() if each.type == "AddN"]
    assert sums, "the decoder adds"
    assert max(len(each.inputs) for each in sums) == 2
