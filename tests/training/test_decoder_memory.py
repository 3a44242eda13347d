"""What is counted of a decoder's memory is what is there."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.discriminators import Rivals, choose_rival_size
from myxtts.models.sizes import DecoderSize
from myxtts.models.speech_units import SEGMENT_SAMPLES
from myxtts.models.waveform import WaveformDecoder
from myxtts.training import memory_estimate as decoder_memory

SIZE = DecoderSize(latent_width=16, width=32, speaker_width=8)


def test_every_trained_number_is_counted_once():
    parts = WaveformDecoder(SIZE), Rivals(choose_rival_size(SIZE))
    real = sum(int(np.prod(variable.shape)) for part in parts for variable in part.variables)
    assert decoder_memory.count_decoder_parameters(SIZE) == real


def test_what_rivals_say_is_counted_up_to_edges():
    size = choose_rival_size(SIZE)
    said = Rivals(size)(tf.zeros([1, SEGMENT_SAMPLES]))
    real = sum(int(tf.size(layer)) for each in said for layer in each)
    assert decoder_memory._count_rivals(size) == pytest.approx(real, rel=0.1)


def test_a_wider_decoder_keeps_more():
    wide = DecoderSize(latent_width=16, width=64, speaker_width=8)
    assert decoder_memory.count_decoder_numbers(wide) > 1.9 * decoder_memory.count_decoder_numbers(SIZE)
