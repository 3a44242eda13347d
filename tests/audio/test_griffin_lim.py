"""Mel -> magnitudes -> samples: what comes out sounds like what went in."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio import griffin_lim as mel_inversion
from myxtts.audio.filterbanks import DVAE_MEL, make_filterbank
from myxtts.audio.griffin_lim import HOP_SAMPLES, MARGIN_SAMPLES, reconstruct_phase, recover_magnitudes
from myxtts.audio.mels import compute_dvae_mel

NORMS = np.linspace(0.5, 2.0, 80).astype(np.float32)


def make_voice(seconds=1.0):
    """Something like a vowel: harmonics of a pitch that rises, under a slow swell."""
    time = np.arange(round(seconds * 22050)) / 22050
    phase = 2 * np.pi * (120 * time + 20 * time**2)
    wav = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 30))
    return (0.1 * wav * (1.2 + np.sin(9 * time))).astype(np.float32)


def make_mel(wav):
    mel, frames = compute_dvae_mel(tf.constant(wav[None]), tf.constant([len(wav)]), NORMS)
    return mel[:, : int(frames[0])]


@pytest.fixture(scope="module")
def mel():
    return make_mel(make_voice())


def test_recovered_magnitudes_have_the_mel_they_are_for(mel, monkeypatch):
    wanted = tf.exp(mel * NORMS)

    def measure_share_off(magnitudes):
        heard = tf.square(magnitudes) @ make_filterbank(DVAE_MEL)
        return float(tf.reduce_sum(tf.abs(heard - wanted)) / tf.reduce_sum(wanted))

    magnitudes = recover_magnitudes(mel, NORMS)
    assert magnitudes.shape == (*mel.shape[:2], 513)
    assert float(tf.reduce_min(magnitudes)) >= 0
    assert float(tf.reduce_max(magnitudes[..., 400:])) < 1e-4
    assert measure_share_off(magnitudes) < 0.02
    monkeypatch.setattr(mel_inversion, "UPDATES", 0)
    assert measure_share_off(recover_magnitudes(mel, NORMS)) > 0.05


def measure_error(samples, mel):
    start = MARGIN_SAMPLES
    back = make_mel(samples[start : start + (mel.shape[1] - 1) * HOP_SAMPLES])
    frames = min(back.shape[1], mel.shape[1]) - 4
    return float(tf.reduce_mean(tf.abs(back[:, 4:frames] - mel[:, 4:frames])))


def test_samples_have_the_mel_they_were_made_of(mel):
    magnitudes = recover_magnitudes(mel, NORMS)[0].numpy()
    start = measure_error(reconstruct_phase(magnitudes, 0, rounds=0), mel)
    end = measure_error(reconstruct_phase(magnitudes, 0), mel)
    assert end < 0.35
    assert end < 0.3 * start


def test_equal_seeds_give_equal_samples(mel):
    magnitudes = recover_magnitudes(mel[:, :20], NORMS)[0].numpy()
    first = reconstruct_phase(magnitudes, 1, rounds=4)
    assert first.shape == (19 * HOP_SAMPLES + 2 * MARGIN_SAMPLES,)
    np.testing.assert_array_equal(first, reconstruct_phase(magnitudes, 1, rounds=4))
    assert not np.array_equal(first, reconstruct_phase(magnitudes, 2, rounds=4))


def test_what_is_known_is_gone_on_from_and_what_is_guessed_saves_rounds():
    wav = make_voice()
    magnitudes = tf.abs(tf.signal.stft(wav[None], 1024, 256, 1024, window_fn=tf.signal.hann_window))[0].numpy()
    known, guessed = wav[: 20 * HOP_SAMPLES], wav[20 * HOP_SAMPLES : 28 * HOP_SAMPLES]
    behind = slice(20 * HOP_SAMPLES, 24 * HOP_SAMPLES)

    def correlate(**more):
        return float(np.corrcoef(reconstruct_phase(magnitudes, 0, **more)[behind], wav[behind])[0, 1])

    bound = correlate(known_S=known)
    assert bound > 0.95
    assert bound > correlate() + 0.1
    assert correlate(known_S=known, guessed_S=guessed, rounds=8) > max(0.95, correlate(known_S=known, rounds=8) + 0.02)
