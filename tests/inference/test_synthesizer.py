"""A model that speaks: whole texts, many at once, streams, and directories with fewer parts."""

import numpy as np
import pytest

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.inference import generation
from myxtts.inference.errors import SpeechRequestError, UnableToSpeakError, VoiceError
from myxtts.inference.generation import count_rows
from myxtts.inference.joining import PAUSE_SECONDS
from myxtts.inference.loading import load_synthesizer
from myxtts.inference.settings import SpeechSettings
from myxtts.inference.voices import Voice
from myxtts.models.sizes import GPTSize
from tests.inference.builders import CONFIG, build_synthesizer, write_small_model
from tests.models.reference import load_case

LONG = "This is one sentence of a text. And here comes another one. Then a third follows it."


@pytest.fixture(scope="module")
def synthesizer():
    return build_synthesizer()


@pytest.fixture(scope="module")
def rough():
    return build_synthesizer(decoder=False)


@pytest.fixture(scope="module")
def voice():
    spoken = load_case("l_end_to_end")
    return Voice(spoken["out/cond_latents_30s_chunk4"][0], spoken["out/speaker_embedding"][0, :, 0])


def test_a_text_is_spoken_at_the_rate_that_is_said(synthesizer, rough, voice):
    for model, rate_hz, word in (
        (synthesizer, 24_000, "waveform decoder"),
        (rough, 22_050, "no trained waveform decoder"),
    ):
        speech = model.speak("Hello.", voice, "en")
        assert speech.rate_hz == model.rate_hz == rate_hz
        assert word in model.vocoder.how
        assert ("no trained speaker encoder" in model.speaker_note) == (model is rough)
        (piece,) = speech.pieces
        assert speech.seconds == pytest.approx(piece.codes * 1024 / 22050, abs=0.06)
        assert np.isfinite(speech.samples).all()
        assert speech.samples.std() > 1e-4


def test_the_seed_decides_and_greedy_needs_none(synthesizer, voice):
    def say(**settings):
        return synthesizer.speak("Hello there.", voice, "en", SpeechSettings(**settings)).samples

    np.testing.assert_array_equal(say(seed=1), say(seed=1))
    assert not np.array_equal(say(seed=1), say(seed=2))
    np.testing.assert_array_equal(say(greedy=True, seed=1), say(greedy=True, seed=2))


@pytest.mark.parametrize("model", ["synthesizer", "rough"])
def test_a_stream_joined_is_the_speech(model, voice, request):
    model = request.getfixturevalue(model)
    settings = SpeechSettings(greedy=True, repetition_penalty=5.0)
    chunks = list(model.stream(LONG, voice, "en", settings, chunk_codes=8))
    speech = model.speak(LONG, voice, "en", settings)
    reports = [chunk.piece for chunk in chunks if chunk.piece]
    assert len(chunks) > 2 * len(reports) - 1
    assert [report.text for report in reports] == [piece.text for piece in speech.pieces]
    assert tuple(reports) == speech.pieces
    np.testing.assert_allclose(np.concatenate([chunk.samples for chunk in chunks]), speech.samples, atol=1e-4)


def test_a_draw_is_the_same_in_a_stream_and_in_turn(synthesizer, voice):
    settings = SpeechSettings(seed=5, max_codes=15)
    streamed = [chunk.samples for chunk in synthesizer.stream("Hello.", voice, "en", settings, chunk_codes=4)]
    in_turn = [chunk.samples for chunk in synthesizer.speak_in_turn("Hello.", voice, "en", settings)]
    np.testing.assert_allclose(np.concatenate(streamed), np.concatenate(in_turn), atol=1e-4)


def test_a_model_from_scratch_says_each_sentence_for_itself(rough, synthesizer, voice):
    text, settings = "One. Two three. Four.", SpeechSettings(max_codes=3)
    assert [piece.text for piece in rough.speak(text, voice, "en", settings).pieces] == ["One.", "Two three.", "Four."]
    assert len(synthesizer.speak(text, voice, "en", settings).pieces) == 1


def test_pieces_are_parted_by_a_pause(synthesizer, voice):
    speech = synthesizer.speak(LONG, voice, "en", SpeechSettings(greedy=True))
    assert len(speech.pieces) > 1
    pauses = (len(speech.pieces) - 1) * PAUSE_SECONDS
    assert speech.seconds == pytest.approx(sum(piece.seconds for piece in speech.pieces) + pauses, abs=1e-3)
    first_end = round(speech.pieces[0].seconds * speech.rate_hz)
    assert not speech.samples[first_end : first_end + round(PAUSE_SECONDS * speech.rate_hz)].any()
    assert abs(speech.samples[first_end - 1]) == 0


def test_a_second_of_speech_costs_the_same_in_a_long_text(synthesizer, voice, monkeypatch):
    """Counted in what a stream does: frames through the decoder, and codes through the GPT."""
    decode, frames = synthesizer.vocoder.decode, []
    monkeypatch.setattr(
        synthesizer.vocoder, "decode", lambda window, speaker: frames.append(window.shape[1]) or decode(window, speaker)
    )

    def measure_cost(text):
        frames.clear()
        settings = SpeechSettings(seed=1, max_codes=20)
        chunks = list(synthesizer.stream(text, voice, "en", settings, chunk_codes=8))
        seconds = sum(len(chunk.samples) for chunk in chunks) / synthesizer.rate_hz
        return sum(frames) / seconds, sum(chunk.piece.codes for chunk in chunks if chunk.piece) / seconds

    for short, long in zip(measure_cost(LONG), measure_cost(" ".join([LONG] * 6)), strict=True):
        assert long < 1.2 * short


@pytest.mark.parametrize("settings", [SpeechSettings(greedy=True), SpeechSettings(seed=7)], ids=["greedy", "drawn"])
def test_many_texts_at_once_sound_as_each_alone(synthesizer, voice, settings):
    texts = ["Hello.", LONG, "Good morning to you."]
    together = synthesizer.speak_all(texts, voice, "en", settings)
    for text, speech in zip(texts, together, strict=True):
        alone = synthesizer.speak(text, voice, "en", settings)
        assert speech.pieces == alone.pieces
        np.testing.assert_allclose(speech.samples, alone.samples, atol=1e-4)


def test_a_second_sentence_compiles_nothing(synthesizer, voice):
    model = synthesizer
    model.speak("Hello.", voice, "en", SpeechSettings(seed=1))
    list(model.stream("Hello.", voice, "en", SpeechSettings(seed=1), chunk_codes=8))
    before = model.traces
    model.speak("Good night.", voice, "en", SpeechSettings(seed=2, temperature=0.3, top_k=5, max_codes=9))
    list(model.stream("Good night.", voice, "en", SpeechSettings(top_p=0.5), chunk_codes=5))
    assert model.traces == before


def test_what_does_not_stop_is_reported(synthesizer, voice):
    settings = SpeechSettings(greedy=True, max_codes=6)
    speech = synthesizer.speak("Hello.", voice, "en", settings)
    assert [piece.codes for piece in speech.unfinished] == [6]
    (report,) = [chunk.piece for chunk in synthesizer.stream("Hello.", voice, "en", settings) if chunk.piece]
    assert (report.codes, report.stopped) == (6, False)


def test_bad_requests_are_refused_at_the_call(synthesizer, voice):
    with pytest.raises(SpeechRequestError, match="something to say"):
        synthesizer.stream(" ", voice, "en")
    with pytest.raises(SpeechRequestError, match="something to say"):
        synthesizer.speak_in_turn("", voice, "en")
    with pytest.raises(VoiceError, match="64 wide"):
        synthesizer.speak("Hello.", Voice(np.zeros((32, 8), np.float32), voice.speaker_G), "en")


def test_memory_of_a_batch_is_bounded():
    big = GPTSize(
        layers=30, width=1024, heads=16, text_tokens=6681, audio_codes=1024, max_text_tokens=402, max_audio_tokens=605
    )
    assert count_rows(big) == 4
    assert count_rows(big, cache_bytes=1) == 1
    assert count_rows(big, cache_bytes=1 << 40) == 8


def test_a_recording_goes_through_the_codes_and_back(rough):
    samples = np.random.default_rng(3).normal(0, 0.1, 30_000).astype(np.float32)
    copied = rough.copy_speech(samples)
    assert copied.shape == samples.shape
    assert copied.std() > 1e-4
    with pytest.raises(UnableToSpeakError, match="DVAE"):
        build_synthesizer(dvae=False).copy_speech(samples)


def test_a_directory_from_scratch_speaks_through_its_dvae(tmp_path):
    model = load_synthesizer(write_small_model(tmp_path / "m"))
    assert model.rate_hz == 22_050
    assert "no trained waveform decoder" in model.vocoder.how
    assert "no trained speaker encoder" in model.speaker_note
    assert len(model.copy_speech(np.random.default_rng(5).normal(0, 0.1, 5000).astype(np.float32))) == 5000


def test_a_directory_with_a_decoder_and_no_speaker_encoder_speaks_with_a_zero_speaker(tmp_path):
    speaker = {
        "gpt_cond_latent": np.ones((1, 32, 32), np.float32),
        "speaker_embedding": np.zeros((1, 512, 1), np.float32),
    }
    model = load_synthesizer(write_small_model(tmp_path / "m", decoder=True, speakers={"Ana": speaker}))
    assert model.rate_hz == 24_000
    assert model.speakers == ("Ana",)
    assert not model.clone_voice([reference(tmp_path)]).speaker_G.any()
    assert len(model.speak("Hello.", model.find_voice("Ana"), "en", SpeechSettings(max_codes=10)).samples)


def reference(folder):
    import soundfile

    path = folder / "voice.wav"
    soundfile.write(path, np.random.default_rng(4).normal(0, 0.1, 22050), 22050)
    return path


def test_directories_that_cannot_speak_say_what_they_lack(tmp_path):
    with pytest.raises(UnableToSpeakError, match=r"vocab\.json"):
        load_synthesizer(write_small_model(tmp_path / "mute", vocabulary=False))
    write_model_directory(tmp_path / "codec", config=CONFIG, model={"mel_stats": np.ones(80, np.float32)}, dvae={})
    with pytest.raises(UnableToSpeakError, match="must have a GPT, but is a codec alone"):
        load_synthesizer(tmp_path / "codec")
    with pytest.raises(UnableToSpeakError, match="neither"):
        load_synthesizer(write_small_model(tmp_path / "deaf", dvae=False))
    with pytest.raises(ModelFileError):
        load_synthesizer(tmp_path / "nowhere")


@pytest.mark.parametrize(("is_published", "penalty"), [(True, 5.0), (False, 1.0)])
def test_only_models_from_the_published_one_are_kept_from_repeating_codes(monkeypatch, is_published, penalty):
    rules = []
    real = generation.make_rule
    monkeypatch.setattr(generation, "make_rule", lambda *given: rules.append(real(*given)) or rules[-1])
    synthesizer = build_synthesizer(decoder=is_published)
    voice = synthesizer.clone_samples([np.sin(np.arange(22050) / 9).astype(np.float32)])
    synthesizer.speak("one", voice, "en", SpeechSettings(max_codes=2))
    synthesizer.speak("one", voice, "en", SpeechSettings(max_codes=2, repetition_penalty=3.0))
    assert [float(rule.repetition_penalty) for rule in rules] == [penalty, 3.0]
