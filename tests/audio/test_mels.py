"""The three mels: equal to the reference, and a function of the clip alone."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.filterbanks import (
    CONDITIONING_MEL,
    DVAE_MEL,
    SILENT_LOG_POWER,
    SPEAKER_MEL,
    compute_log_mel,
    make_filterbank,
    make_window,
)
from myxtts.audio.mels import (
    TAIL_SAMPLES,
    compute_conditioning_mel,
    compute_dvae_mel,
    compute_slice_mel,
    compute_speaker_mel,
    make_silent_frame,
)
from myxtts.audio.on_device import cut_slices
from myxtts.units import SAMPLES_PER_CODE
from tests.audio import dvae_codes
from tests.audio.reference import load_full_parity, load_parity

LOG_TOLERANCE = 1e-3
NORMS = np.linspace(1.5, 3.0, 80).astype(np.float32)


def to_reference(mel: tf.Tensor) -> np.ndarray:
    """(B, T, M) as the reference lays it out: (B, M, T)."""
    return np.swapaxes(mel.numpy(), 1, 2)


def make_noise(samples: int, rows: int = 1, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, samples)) * 0.1).astype(np.float32)


def test_filterbanks_and_windows_are_those_of_the_reference() -> None:
    arrays = load_parity("g_mels")
    np.testing.assert_allclose(make_filterbank(DVAE_MEL), arrays["mid/fb_dvae"], atol=1e-7)
    full = load_full_parity("g_mels")
    np.testing.assert_allclose(make_filterbank(CONDITIONING_MEL), full["mid/fb_cond"], atol=1e-7)
    np.testing.assert_allclose(make_filterbank(SPEAKER_MEL), full["mid/fb_speaker"], atol=1e-5)
    np.testing.assert_allclose(make_window(DVAE_MEL), full["mid/window_hann_1024"], atol=1e-6)
    np.testing.assert_allclose(make_window(SPEAKER_MEL), full["mid/window_hamming_400"], atol=1e-6)


def test_mels_are_those_of_the_reference() -> None:
    arrays = load_parity("g_mels")
    wav, norms = arrays["in/wav_22k"], arrays["in/mel_norms"]
    samples = wav.shape[1]
    conditioning, frames = compute_conditioning_mel(wav, [samples], norms)
    np.testing.assert_allclose(to_reference(conditioning), arrays["out/cond_mel"], atol=LOG_TOLERANCE)
    assert frames.numpy().tolist() == [87]
    dvae = compute_slice_mel(wav, norms, DVAE_MEL)
    np.testing.assert_allclose(to_reference(dvae), arrays["out/dvae_mel"], atol=LOG_TOLERANCE)
    speaker_wav = arrays["out/resample_22050_16000"]
    speaker, frames = compute_speaker_mel(speaker_wav, [speaker_wav.shape[1]])
    np.testing.assert_allclose(to_reference(speaker), arrays["out/speaker_instance_norm"], atol=LOG_TOLERANCE)
    assert frames.numpy().tolist() == [101]


def test_without_the_reference_padding_only_the_last_two_frames_differ() -> None:
    arrays = load_parity("g_mels")
    mel, frames = compute_dvae_mel(arrays["in/wav_22k"], [22050], arrays["in/mel_norms"])
    assert frames.numpy().tolist() == [87]
    expected = arrays["out/dvae_mel"]
    got = to_reference(mel)[..., : expected.shape[2]]
    np.testing.assert_allclose(got[..., :-2], expected[..., :-2], atol=LOG_TOLERANCE)
    assert np.max(np.abs(got[..., -2:] - expected[..., -2:])) > 0.01


def test_a_training_batch_becomes_the_reference_mels_and_codes() -> None:
    arrays = load_parity("m_train_batch")
    wav, norms = arrays["in/wav"][:, 0], arrays["in/mel_norms"]
    starts, ends = arrays["in/cond_idxs"].T
    slices = cut_slices(wav, starts, ends - starts, samples=13230)
    slice_mel = compute_slice_mel(slices, norms)
    np.testing.assert_allclose(to_reference(slice_mel), arrays["out/cond_mels"][:, 0], atol=LOG_TOLERANCE)
    mel = compute_slice_mel(wav, norms, DVAE_MEL)
    codes = np.stack([dvae_codes.encode(arrays, row) for row in mel.numpy()])
    np.testing.assert_array_equal(codes, arrays["out/audio_codes"])


def test_the_silence_behind_a_clip_is_longer_than_the_dvae_can_hear() -> None:
    arrays = load_parity("m_train_batch")
    wav, norms = arrays["in/wav"][0:1, 0, : 16 * SAMPLES_PER_CODE], arrays["in/mel_norms"]
    mel, _ = compute_dvae_mel(wav, [wav.shape[1]], norms)
    mel = mel[0].numpy()
    assert len(mel) == (16 + TAIL_SAMPLES // SAMPLES_PER_CODE) * 4
    # Rubbish from the seventh code behind the clip on stays unheard, from the sixth on it does not.
    for first_code, heard in ((6, False), (5, True)):
        disturbed = mel.copy()
        disturbed[(16 + first_code) * 4 :] = 1000.0 * np.sign(np.random.default_rng(0).normal(size=80))
        vectors = dvae_codes.compute_vectors(arrays, disturbed)[:16]
        assert np.array_equal(vectors, dvae_codes.compute_vectors(arrays, mel)[:16]) is not heard


MELS: dict[str, Callable] = {
    "conditioning": lambda wav, lengths: compute_conditioning_mel(wav, lengths, NORMS),
    "dvae": lambda wav, lengths: compute_dvae_mel(wav, lengths, NORMS),
    "speaker": compute_speaker_mel,
}


@functools.cache
def compile_mel(name: str) -> Callable:
    return tf.function(MELS[name], reduce_retracing=False)


@pytest.mark.parametrize("name", MELS)
def test_a_clip_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    # A length at which a plain matrix product fails this test for each of the three mels.
    samples = 33845
    clip = make_noise(samples)
    alone, frames = compile_mel(name)(clip, tf.constant([samples]))
    for rows, padding, row in ((2, 0, 1), (3, 1, 0), (2, 1024, 0), (8, 5000, 7), (1, 40000, 0)):
        batch = make_noise(samples + padding, rows, seed=rows)
        batch[row, :samples] = clip
        lengths = np.full(rows, samples + padding)
        lengths[row] = samples
        output, all_frames = compile_mel(name)(batch, tf.constant(lengths))
        assert all_frames[row] == frames[0]
        own = min(alone.shape[1], output.shape[1])
        np.testing.assert_array_equal(output[row, :own], alone[0, :own], err_msg=f"{rows} rows, padding {padding}")


def test_frames_past_a_clip_are_silence() -> None:
    wav, lengths = make_noise(20000, 2), [20000, 5000]
    wav[1, 5000:] = np.nan
    silence = make_silent_frame(NORMS).numpy()
    np.testing.assert_allclose(silence, np.log(1e-5) / NORMS, rtol=1e-6)
    conditioning, frames = compute_conditioning_mel(wav, lengths, NORMS)
    assert frames.numpy().tolist() == [79, 20]
    np.testing.assert_array_equal(conditioning[1, 20:], np.broadcast_to(silence, (59, 80)))
    dvae, frames = compute_dvae_mel(wav, lengths, NORMS)
    assert frames.numpy().tolist() == [79, 20]
    assert dvae.shape[1] == 28 * 4
    # The window of frame 21 still reaches the clip's last samples, that of frame 22 does not.
    assert (dvae[1, 21] != silence).numpy().any()
    np.testing.assert_array_equal(dvae[1, 22:], np.broadcast_to(silence, (90, 80)))
    speaker, frames = compute_speaker_mel(wav, lengths)
    assert frames.numpy().tolist() == [126, 32]
    assert not speaker[1, 32:].numpy().any()


def test_the_mel_without_tensorflow_is_that_of_the_codec_but_for_the_edges() -> None:
    samples = make_noise(8000)
    mel, _ = compute_dvae_mel(samples, [8000], np.ones(80, np.float32))
    plain = compute_log_mel(samples[0])
    assert plain.shape == (1 + 8000 // 256, 80)
    np.testing.assert_allclose(plain[3:-3], mel.numpy()[0, 3 : len(plain) - 3], atol=2e-4)
    assert (compute_log_mel(np.zeros(2000, np.float32)) == np.float32(SILENT_LOG_POWER)).all()
    assert compute_log_mel(np.ones(1, np.float32)).shape == (1, 80)
