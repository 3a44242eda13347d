"""Sound in every form it is sent in."""

import io

import numpy as np
import pytest
import soundfile

from myxtts.serving.sounds import FORMATS, encode_stream, encode_whole, make_wav_header

RATE_HZ = 22_050
TONE = (0.5 * np.sin(np.arange(RATE_HZ * 2) / 30)).astype(np.float32)
CHUNKS = [TONE[:7000], TONE[7000:7000], TONE[7000:20_000], TONE[20_000:]]


def join(parts):
    return b"".join(part for part in parts if part)


def read_pcm(data):
    return np.frombuffer(data, "<i2").astype(np.float64) / 32767


@pytest.mark.parametrize(
    ("name", "rate_hz"), [("wav", 22050), ("flac", 22050), ("mp3", 22050), ("ogg", 22050), ("opus", 24000)]
)
def test_a_whole_file_can_be_read_back(name, rate_hz):
    *before, data = encode_whole(CHUNKS, FORMATS[name], RATE_HZ)
    assert before == [None] * len(before)
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == rate_hz
    assert len(samples) / rate == pytest.approx(2.0, abs=0.1)
    middle = samples[rate // 2 : rate]
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


def test_samples_without_a_header_have_the_rate_that_clients_expect():
    whole = read_pcm(join(encode_whole(CHUNKS, FORMATS["pcm"], RATE_HZ)))
    assert len(whole) == pytest.approx(2 * 24_000, abs=2)
    untouched = read_pcm(join(encode_whole(CHUNKS, FORMATS["pcm"], 24_000)))
    np.testing.assert_allclose(untouched, TONE, atol=1e-4)


@pytest.mark.parametrize(("name", "header"), [("pcm", 0), ("wav", 44)])
def test_a_stream_joined_is_the_whole_and_can_be_read_though_it_does_not_know_its_length(name, header):
    parts = [part for part in encode_stream(CHUNKS, FORMATS[name], RATE_HZ) if part]
    assert len(parts) >= 3
    streamed, whole = join(parts), join(encode_whole(CHUNKS, FORMATS[name], RATE_HZ))
    assert len(streamed) == len(whole)
    np.testing.assert_allclose(read_pcm(streamed[header:]), read_pcm(whole[header:]), atol=2 / 32767)
    if name == "wav":
        samples, rate = soundfile.read(io.BytesIO(streamed))
        assert rate == RATE_HZ
        np.testing.assert_allclose(samples, TONE, atol=1e-4)


@pytest.mark.parametrize("name", ["wav", "pcm"])
def test_a_model_that_says_nothing_gives_an_answer_all_the_same(name):
    parts = [part for part in encode_stream([TONE[:0]], FORMATS[name], 24_000) if part is not None]
    assert parts == [make_wav_header(24_000) if name == "wav" else b""]


def test_what_is_too_loud_is_clipped():
    loud = np.array([3.0, -3.0], np.float32)
    np.testing.assert_array_equal(read_pcm(join(encode_whole([loud], FORMATS["pcm"], 24_000))), [1.0, -1.0])
