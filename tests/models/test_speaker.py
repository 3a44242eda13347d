"""The speaker encoder."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.mels import compute_speaker_mel
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.weights import load_checkpoint_arrays
from tests.models.reference import SPEAKER_SIZE, differ, load_case, load_state


@pytest.fixture(scope="module")
def encoder():
    encoder = SpeakerEncoder(SPEAKER_SIZE)
    load_checkpoint_arrays(encoder, load_state("f_speaker_encoder")).require_complete()
    return tf.function(encoder, autograph=False)


def test_embedding_from_audio_is_the_references(encoder):
    arrays = load_case("f_speaker_encoder")
    wav = tf.constant(arrays["in/wav_16k"])
    mel, _ = compute_speaker_mel(wav, tf.fill([2], wav.shape[1]))
    embedding = encoder(mel)
    assert differ(embedding, arrays["out/embedding_l2"]) < 1e-4
    assert np.linalg.norm(embedding, axis=-1) == pytest.approx([1, 1], abs=1e-5)
