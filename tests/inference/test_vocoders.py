"""Sound in steps is the sound of one step, and costs no more the longer it gets."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from myxtts.inference import vocoders as decoder_vocoder
from myxtts.inference.speech import EdgeSoftener
from myxtts.inference.synthesizer import STREAM_CODES
from myxtts.inference.vocoders import DecoderVocoder, MelVocoder, lay_windows
from myxtts.inference.voices import Voice
from myxtts.models.waveform import change_speed
from myxtts.serving.server import ServerSettings
from myxtts.units import FRAMES_PER_CODE
from tests.inference.builders import build_reference_xtts

RNG = np.random.default_rng(2)
CODES = RNG.integers(0, 64, 72).astype(np.int32)
LATENTS = RNG.normal(0, 1, (72, 64)).astype(np.float32)
VOICE = Voice(np.zeros((32, 64), np.float32), RNG.normal(0, 0.1, 64).astype(np.float32))
STEPS = [3, 6, 15, 23, 35, 36, 58, 72]


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts()


@pytest.fixture(scope="module", params=["decoder", "mel"])
def vocoder(request, xtts):
    return DecoderVocoder(xtts.decoder) if request.param == "decoder" else MelVocoder(xtts.dvae, xtts.mel_norms.numpy())


def render_in_steps(vocoder, speed, steps):
    rendering = vocoder.start(VOICE, speed)
    return [rendering.render(CODES[:step], LATENTS[:step], is_last=step == steps[-1]) for step in steps]


@pytest.mark.parametrize("speed", [1.0, 0.8])
def test_steps_give_the_sound_of_one_step(vocoder, speed):
    whole = render_in_steps(vocoder, speed, [72])[0]
    parts = render_in_steps(vocoder, speed, STEPS)
    assert sum(len(part) > 0 for part in parts) >= 2
    joined = np.concatenate(parts)
    assert joined.shape == whole.shape
    np.testing.assert_allclose(joined, whole, atol=1e-5)


def test_rough_sound_in_steps_is_the_same_to_the_last_bit(xtts):
    vocoder = MelVocoder(xtts.dvae, xtts.mel_norms.numpy())
    whole = render_in_steps(vocoder, 1.3, [72])[0]
    np.testing.assert_array_equal(np.concatenate(render_in_steps(vocoder, 1.3, STEPS)), whole)


@pytest.mark.parametrize(("codes", "heard_s"), [(ServerSettings().first_codes, 0.07), (STREAM_CODES, 0.18)])
def test_the_first_chunk_of_a_stream_is_heard(vocoder, codes, heard_s):
    first = vocoder.start(VOICE, 1.0).render(CODES[:codes], LATENTS[:codes], is_last=False)
    assert len(first) / vocoder.rate_hz > heard_s


@pytest.mark.parametrize("speed", [1.0, 0.7])
def test_a_stream_is_rendered_when_there_is_more_to_hear(vocoder, speed):
    steps = list(itertools.takewhile(lambda step: step < 72, vocoder.list_steps(6)))
    assert steps[0] == 6
    parts = render_in_steps(vocoder, speed, [*steps, 72])
    assert all(len(part) for part in parts)


def test_rough_sound_is_not_late_once_it_has_begun(xtts):
    steps = MelVocoder(xtts.dvae, xtts.mel_norms.numpy()).list_steps(6)
    times = [step / 1.75 for step in itertools.islice(steps, 30)]
    for time, (_, heard_frames, _) in zip(times, lay_windows(), strict=False):
        assert time <= times[0] + heard_frames / FRAMES_PER_CODE + 1e-9


@pytest.mark.parametrize("speed", [1.0, 0.8])
def test_windows_give_what_the_decoder_gives_at_once(xtts, speed, monkeypatch):
    monkeypatch.setattr(decoder_vocoder, "MOST_FRAMES", 100)
    whole = xtts.decoder(change_speed(tf.constant(LATENTS[None]), speed), tf.constant(VOICE.speaker_G[None]))[0].numpy()
    np.testing.assert_allclose(render_in_steps(DecoderVocoder(xtts.decoder), speed, [72])[0], whole, atol=1e-5)


def test_decoding_costs_the_same_at_every_step(xtts):
    vocoder = DecoderVocoder(xtts.decoder)
    decode, frames = vocoder.decode, []
    vocoder.decode = lambda window, speaker: frames.append(window.shape[1]) or decode(window, speaker)
    render_in_steps(vocoder, 1.0, [18, 36, 54, 72])
    assert max(frames[1:-1]) - min(frames[1:-1]) <= 1
    assert sum(frames) < 1.7 * 72 * 640 / 147
    assert decode.experimental_get_tracing_count() == 1


def test_windows_of_rough_sound_are_faded_into_one_another(xtts):
    vocoder = MelVocoder(xtts.dvae, xtts.mel_norms.numpy())
    numbers = itertools.count()
    vocoder.find_samples = lambda *_: np.full(100_000, next(numbers), np.float32)
    joined = vocoder.start(None, 1.0).render(CODES, is_last=True)
    assert (joined[0], joined[-1]) == (0, next(numbers) - 1)
    steps = np.diff(joined)
    assert 0 <= steps.min() < steps.max() < 1 / 1000


def test_tokens_without_sound_are_left_out(xtts):
    vocoder = MelVocoder(xtts.dvae, xtts.mel_norms.numpy())
    plain = vocoder.start(None, 1.0).render(CODES[:20], is_last=True)
    tokens = np.insert(CODES[:20], [4, 20], [64, 65])
    np.testing.assert_array_equal(vocoder.start(None, 1.0).render(tokens, is_last=True), plain)
    assert vocoder.start(None, 1.0).render(np.array([65], np.int32), is_last=True).shape == (0,)


@pytest.mark.parametrize("cuts", [[], [50], [200, 500]])
def test_edges_are_soft_however_the_piece_is_cut(cuts):
    softener = EdgeSoftener(20_000)
    parts = np.split(np.ones(1000, np.float32), cuts)
    softened = np.concatenate(
        [softener.soften(part, is_last=index == len(parts) - 1) for index, part in enumerate(parts)]
    )
    assert softened[0] == softened[-1] == 0
    assert np.all(softened[100:900] == 1)
    assert np.max(np.abs(np.diff(softened))) < 0.0101
