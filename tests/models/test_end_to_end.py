"""From audio and text to speech, and from audio and text to a loss, through every part and the audio front ends."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.filterbanks import DVAE_MEL
from myxtts.audio.mels import compute_slice_mel
from myxtts.models.gpt import GPTBatch
from tests.inference.builders import build_reference_xtts
from tests.models.reference import (
    count_codes,
    differ,
    load_case,
    span_as_reference,
)


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts(decoder=False)


def test_training_batch_from_audio(xtts):
    arrays = load_case("m_train_batch")
    norms = xtts.mel_norms.numpy()
    cond_mel = compute_slice_mel(tf.constant(arrays["in/conditioning"][:, 0, 0]), norms)
    assert differ(cond_mel, arrays["out/cond_mels"][:, 0].swapaxes(1, 2)) < 1e-3
    wav, samples = tf.constant(arrays["in/wav"][:, 0]), tf.constant(arrays["in/wav_lengths"])
    codes = xtts.dvae.encode(compute_slice_mel(wav, norms, DVAE_MEL))
    np.testing.assert_array_equal(codes, arrays["out/audio_codes"])
    batch = GPTBatch(
        cond_mel,
        tf.constant(arrays["in/padded_text"], tf.int64),
        tf.constant(arrays["in/text_lengths"]),
        codes[:, : int(tf.reduce_max(count_codes(samples)))],
        count_codes(samples),
        span_as_reference(arrays["in/cond_idxs"]),
    )
    losses = xtts.gpt.compute_losses(batch)
    assert differ(losses.text.mean, arrays["out/loss_text"]) < 1e-4
    assert differ(losses.audio.mean, arrays["out/loss_mel"]) < 1e-4
    assert differ(losses.weigh(), arrays["out/loss"]) < 1e-4
    plain = xtts.gpt.compute_losses(batch._replace(spans_B2=None))
    assert differ(plain.audio.mean, arrays["out/loss_mel_no_cond_idxs"]) < 1e-4
