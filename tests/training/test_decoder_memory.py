"""What is counted of a decoder's memory is what is there."""

import numpy as np

from myxtts.models.discriminators import Rivals, choose_rival_size
from myxtts.models.sizes import DecoderSize
from myxtts.models.waveform import WaveformDecoder
from myxtts.training import memory_estimate as decoder_memory

SIZE = DecoderSize(latent_width=16, width=32, speaker_width=8)


def test_every_trained_number_is_counted_once():
    parts = WaveformDecoder(SIZE), Rivals(choose_rival_size(SIZE))
    real = sum(int(np.prod(variable.shape)) for part in parts for variable in part.variables)
    assert decoder_memory.count_decoder_parameters(SIZE) == real


def test_a_wider_decoder_keeps_more():
    wide = DecoderSize(latent_width=16, width=64, speaker_width=8)
    assert decoder_memory.count_decoder_numbers(wide) > 1.9 * decoder_memory.count_decoder_numbers(SIZE)
