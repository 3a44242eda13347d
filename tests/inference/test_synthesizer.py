"""A model that speaks: whole texts, many at once, streams, and directories with fewer parts."""

from dataclasses import replace

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensors import read_array
from myxtts.errors import ModelFileError, SpeechRequestError, UnableToSpeakError, VoiceError
from myxtts.inference import synthesizer as loading
from myxtts.inference.cloning import describe_speaker
from myxtts.inference.generation import count_rows
from myxtts.inference.speech import PAUSE_SECONDS, SpeechSettings
from myxtts.inference.synthesizer import SpeechCopier, Synthesizer, load_synthesizer
from myxtts.inference.voices import Voice
from myxtts.models.sizes import GPTSize
from tests.inference.builders import CONFIG, build_reference_xtts, build_synthesizer, write_small_model
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
        (rough, 22_050, "That sounds rough, however well the model is trained."),
    ):
        speech = model.speak("Hello.", voice, "en")
        assert speech.rate_hz == model.rate_hz == rate_hz
        assert word in model.vocoder.how
        assert ("no speaker embedding is heard" in model.speaker_note) == (model is rough)
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


def test_pieces_are_parted_by_a_pause(synthesizer, voice):
    speech = synthesizer.speak(LONG, voice, "en", SpeechSettings(greedy=True))
    assert len(speech.pieces) > 1
    pauses = (len(speech.pieces) - 1) * PAUSE_SECONDS
    assert speech.seconds == pytest.approx(sum(piece.seconds for piece in speech.pieces) + pauses, abs=1e-3)
    first_end = round(speech.pieces[0].seconds * speech.rate_hz)
    assert not speech.samples[first_end : first_end + round(PAUSE_SECONDS * speech.rate_hz)].any()
    assert abs(speech.samples[first_end - 1]) == 0


def test_a_pause_is_as_long_as_it_was_asked_for_also_in_a_stream(synthesizer, voice):
    settings, second = SpeechSettings(greedy=True), synthesizer.rate_hz
    alone = synthesizer.speak("Hello.", voice, "en", settings).samples
    text = "[pause 0.5s] Hello. [pause 1s] Hello. [pause 250ms]"
    parts = (np.zeros(second // 2), alone, np.zeros(second), alone, np.zeros(second // 4))
    for say in (synthesizer.speak_in_turn, synthesizer.stream):
        chunks = [chunk.samples for chunk in say(text, voice, "en", settings)]
        np.testing.assert_allclose(np.concatenate(chunks), np.concatenate(parts), atol=1e-4)


def test_pieces_said_in_one_batch_sound_as_each_alone(synthesizer, voice):
    settings = SpeechSettings(greedy=True)
    together = synthesizer.speak(LONG, voice, "en", settings)
    alone = [synthesizer.speak(piece.text, voice, "en", settings) for piece in together.pieces]
    assert together.pieces == tuple(piece for speech in alone for piece in speech.pieces)
    pause = np.zeros(round(PAUSE_SECONDS * synthesizer.rate_hz), np.float32)
    joined = np.concatenate([part for speech in alone for part in (speech.samples, pause)])[: -len(pause)]
    np.testing.assert_allclose(together.samples, joined, atol=1e-4)


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
    copied = SpeechCopier(rough.xtts).copy(samples)
    assert copied.shape == samples.shape
    assert copied.std() > 1e-4
    with pytest.raises(UnableToSpeakError, match="DVAE"):
        SpeechCopier(build_synthesizer(dvae=False).xtts)


def test_a_directory_with_a_decoder_and_no_speaker_encoder_speaks_with_a_zero_speaker(tmp_path):
    speaker = {
        "gpt_cond_latent": np.ones((1, 32, 32), np.float32),
        "speaker_embedding": np.zeros((1, 512, 1), np.float32),
    }
    model = load_synthesizer(write_small_model(tmp_path / "m", decoder=True, speakers={"Ana": speaker}))
    assert model.rate_hz == 24_000
    assert model.speakers == ("Ana",)
    assert "no trained speaker encoder" in model.speaker_note
    assert not model.clone_voice([reference(tmp_path)]).speaker_G.any()
    assert len(model.speak("Hello.", model.find_voice("Ana"), "en", SpeechSettings(max_codes=10)).samples)


def reference(folder):
    import soundfile

    path = folder / "voice.wav"
    soundfile.write(path, np.random.default_rng(4).normal(0, 0.1, 22050), 22050)
    return path


def test_what_is_not_a_number_is_not_spoken(tmp_path):
    norms = {"mel_stats": np.full(80, 1e-30, np.float32)}
    small = read_model_directory(write_small_model(tmp_path / "small"))
    arrays = {name: read_array(tensor) for name, tensor in small.model.items()} | norms
    # Each of them within reason; what comes of them is not.
    arrays["gpt.final_norm.weight"] = np.full(32, 9e8, np.float32)
    dvae = {name: np.full_like(read_array(tensor), 9e8) for name, tensor in small.dvae.items()}
    write_model_directory(tmp_path / "bad", config=small.config, model=arrays, dvae=dvae, vocabulary=small.vocabulary)
    model = load_synthesizer(tmp_path / "bad")
    voice = Voice(np.ones((32, 32), np.float32), np.zeros(0, np.float32))
    with pytest.raises(UnableToSpeakError, match="must compute numbers"):
        model.speak("Hello.", voice, "en", SpeechSettings(max_codes=10))


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    small = read_model_directory(write_small_model(tmp_path / "small"))
    vocabulary = small.vocabulary.replace('"vocab": {', '"vocab": {"zzz": 500,')
    assert vocabulary != small.vocabulary
    write_model_directory(tmp_path / "bad", config=small.config, model=small.model, vocabulary=vocabulary)
    with pytest.raises(UnableToSpeakError, match="must have the 188 tokens that its model knows, but has 501"):
        load_synthesizer(tmp_path / "bad")


def test_a_model_larger_than_the_free_memory_is_not_loaded(tmp_path, monkeypatch):
    path = write_small_model(tmp_path / "small")
    monkeypatch.setattr(loading, "read_free_memory_bytes", lambda: 1000)
    with pytest.raises(UnableToSpeakError, match=r"but only 0\.0 GiB are free"):
        load_synthesizer(path)


def test_either_vocoder_can_be_asked_for(tmp_path):
    path = write_small_model(tmp_path / "m", decoder=True)
    decoded, rough = (load_synthesizer(path, vocoder=choice) for choice in ("decoder", "griffin-lim"))
    assert (decoded.vocoder.name, decoded.rate_hz) == ("decoder", 24_000)
    assert (rough.vocoder.name, rough.rate_hz) == ("griffin-lim", 22_050)
    voice = rough.clone_voice([reference(tmp_path)])
    assert rough.describe_stranger(voice) is decoded.describe_stranger(voice) is None
    kept = replace(voice, speaker_G=np.zeros(0, np.float32))
    with pytest.raises(VoiceError, match=r"kept before the decoder was trained has none.*--vocoder griffin-lim"):
        decoded.check_voice(kept)
    rough.check_voice(kept)
    assert rough.speak("Hello.", voice, "en", SpeechSettings(max_codes=10)).samples.any()
    with pytest.raises(UnableToSpeakError, match=r"must have one, but this one has none.*--stage decoder"):
        build_synthesizer(decoder=False, vocoder="decoder")
    with pytest.raises(UnableToSpeakError, match=r"must have a DVAE, but this one has none.*--vocoder decoder"):
        build_synthesizer(dvae=False, vocoder="griffin-lim")


def test_a_voice_of_other_weights_is_told(synthesizer, voice):
    assert synthesizer.describe_stranger(voice) is None, "nobody knows who made it"
    own = synthesizer.clone_samples([np.random.default_rng(4).normal(0, 0.1, 22050).astype(np.float32)])
    assert synthesizer.describe_stranger(own) is None
    xtts = build_reference_xtts(decoder=False)
    xtts.gpt.perceiver.variables[0].assign_add(np.float32(1e-3) + 0 * xtts.gpt.perceiver.variables[0])
    trained_on = Synthesizer(xtts, synthesizer.tokenizer)
    assert "Clone it again" in trained_on.describe_stranger(own)


def test_an_encoder_that_the_decoder_no_longer_hears_is_told():
    xtts = build_reference_xtts()
    assert "comes from the model's speaker encoder" in describe_speaker(xtts, uses_decoder=True)
    xtts.decoder.forget_speakers()
    assert "its decoder was trained on without it" in describe_speaker(xtts, uses_decoder=True)


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


@pytest.mark.parametrize(("is_published", "usual", "other"), [(True, 5.0, 1.0), (False, 1.0, 5.0)])
def test_only_models_from_the_published_one_are_kept_from_repeating_codes(voice, is_published, usual, other):
    synthesizer = build_synthesizer(decoder=is_published)

    def say(**more):
        return synthesizer.speak("one", voice, "en", SpeechSettings(greedy=True, max_codes=12, **more)).samples

    np.testing.assert_array_equal(say(), say(repetition_penalty=usual))
    assert not np.array_equal(say(), say(repetition_penalty=other))
