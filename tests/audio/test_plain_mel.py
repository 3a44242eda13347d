"""The mel without TensorFlow is the model's mel."""

import numpy as np

from myxtts.audio.filterbanks import SILENT_LOG_POWER, compute_log_mel
from myxtts.audio.mels import compute_dvae_mel


def test_it_is_the_mel_of_the_codec_but_for_the_edges():
    samples = np.random.default_rng(1).normal(0, 0.1, 8000).astype(np.float32)
    mel, _ = compute_dvae_mel(samples[None], np.array([8000], np.int32), np.ones(80, np.float32))
    plain = compute_log_mel(samples)
    assert plain.shape == (1 + 8000 // 256, 80)
    np.testing.assert_allclose(plain[3:-3], mel.numpy()[0, 3 : len(plain) - 3], atol=2e-4)


def test_silence_is_the_floor_and_a_single_sample_has_a_frame():
    assert (compute_log_mel(np.zeros(2000, np.float32)) == np.float32(SILENT_LOG_POWER)).all()
    assert compute_log_mel(np.ones(1, np.float32)).shape == (1, 80)
