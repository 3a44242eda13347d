"""The HiFi-GAN decoder."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.layers import scale_directions
from myxtts.models.sizes import count_frames
from myxtts.models.waveform import WaveformDecoder, change_speed, stretch_latents
from myxtts.models.weights import load_checkpoint_arrays
from tests.models.reference import DECODER_SIZE, differ, load_case, load_state

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def arrays():
    return load_case("e_hifi")


@pytest.fixture(scope="module")
def decoder(arrays):
    decoder = WaveformDecoder(DECODER_SIZE)
    load_checkpoint_arrays(decoder, load_state("e_hifi", "waveform_decoder.")).require_complete()
    return decoder


@pytest.mark.parametrize("rows", ["", "_b2"])
def test_speech_is_the_references(decoder, arrays, rows):
    latents, speaker = tf.constant(arrays[f"in/latents{rows}"]), tf.constant(arrays[f"in/g{rows}"][..., 0])
    compiled = tf.function(decoder, autograph=False)
    assert differ(compiled(latents, speaker), arrays[f"out/wav{rows}"][:, 0]) < TOLERANCE


# Of the reference. 147 latents are 640 frames exactly; one more or less would show a rounding slip.
@pytest.mark.parametrize(
    ("latents", "frames"), [(1, 4), (2, 8), (16, 69), (17, 74), (39, 169), (301, 1310), (605, 2634)]
)
def test_lengths(latents, frames):
    assert stretch_latents(tf.zeros([1, latents, 1])).shape[1] == frames
    assert count_frames(latents) == frames


def test_speed_changes_the_number_of_latents():
    ramp = tf.range(10.0)[None, :, None]
    assert change_speed(ramp, 2.0)[0, :, 0].numpy() == pytest.approx([0.5, 2.5, 4.5, 6.5, 8.5])
    assert change_speed(ramp, 0.8).shape[1] == 12
    assert change_speed(ramp, 1.0) is ramp


def test_a_decoder_without_speakers_sounds_alike_for_all(decoder, arrays):
    deaf = WaveformDecoder(DECODER_SIZE)
    load_checkpoint_arrays(deaf, load_state("e_hifi", "waveform_decoder.")).require_complete()
    assert deaf.hears_speakers
    deaf.forget_speakers()
    assert not deaf.hears_speakers
    latents, speaker = tf.constant(arrays["in/latents"][:, :4]), tf.constant(arrays["in/g"][..., 0])
    np.testing.assert_array_equal(deaf(latents, speaker), decoder(latents, tf.zeros_like(speaker)))


def test_directions_get_their_lengths_and_the_gradient_is_the_one_that_tensorflow_derives():
    draw = np.random.default_rng(2)
    shapes = (3, 4, 5), (5,), (3, 4, 5)
    directions, lengths, upstream = (tf.constant(draw.normal(size=shape), tf.float32) for shape in shapes)

    def derive(scale):
        with tf.GradientTape() as tape:
            tape.watch([directions, lengths])
            kernel = scale(directions, lengths)
        return kernel, *tape.gradient(kernel, [directions, lengths], output_gradients=upstream)

    plain = derive(lambda v, g: v / tf.norm(v, axis=[0, 1]) * g)
    for ours, expected in zip(derive(scale_directions), plain, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
