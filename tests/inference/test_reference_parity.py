"""The reference's own numbers, end to end through the code that speaks."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.inference.cloning import VoiceCloner
from myxtts.inference.generation import CodeGenerator, Row, make_rule
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import TeacherForcing
from myxtts.inference.vocoders import DecoderVocoder
from myxtts.inference.voices import Voice
from myxtts.models.decoding import Greedy, generate
from myxtts.models.gpt import GPT, SequenceTooLongError
from myxtts.models.weights import load_checkpoint_arrays
from tests.inference.builders import build_reference_xtts
from tests.models.reference import GPT_SIZE, differ, load_case, load_facts, load_state


@pytest.fixture(scope="module")
def generator():
    gpt = GPT(GPT_SIZE)
    load_checkpoint_arrays(gpt, load_state("gpt_state")).require_complete()
    return CodeGenerator(gpt)


@pytest.mark.parametrize(("case", "penalty"), [("stops", 1.0), ("limit", 1.0), ("reppen5", 5.0), ("b2", 1.0)])
def test_codes_of_padded_texts_are_the_references(generator, case, penalty):
    arrays = load_case("h_generate")
    prompts = arrays["in/cond_latents_b2" if case == "b2" else "in/cond_latents"]
    rows = [
        Row(tuple(text.tolist()), Voice(prompt, np.zeros(0, np.float32)), (0, 0))
        for prompt, text in zip(prompts, arrays[f"in/text_{case}"], strict=True)
    ]
    said = generator.generate(rows, SpeechSettings(greedy=True, repetition_penalty=penalty))
    expected = arrays[f"out/codes_{case}"]
    np.testing.assert_array_equal([row.codes_M for row in said], expected)
    assert [row.stopped for row in said] == (expected[:, -1] == GPT_SIZE.stop_audio_token).tolist()


def test_settings_are_by_default_the_published_ones():
    numbers = load_facts("j_logits_processors")["config"]["sets"]["v2_release"]
    rule = make_rule(SpeechSettings())
    found = [float(rule.temperature), int(rule.top_k), float(rule.top_p), float(rule.repetition_penalty)]
    assert found == pytest.approx([numbers["t"], numbers["k"], numbers["p"], numbers["rp"]])


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts()


@pytest.fixture(scope="module")
def spoken():
    return load_case("l_end_to_end")


def test_voice_of_a_reference(xtts, spoken):
    voice = VoiceCloner(xtts).clone([spoken["in/wav_22k"][0]])
    assert differ(voice.prompt_PC[None], spoken["out/cond_latents_30s_chunk4"]) < 1e-3
    assert differ(voice.speaker_G[None], spoken["out/speaker_embedding"][..., 0]) < 1e-3
    first_six = VoiceCloner(xtts, chunk_seconds=6).clone([spoken["in/wav_22k"][0, : 6 * 22050]])
    assert differ(first_six.prompt_PC[None], spoken["out/cond_latents_6s_chunk6"]) < 1e-3


@pytest.mark.parametrize(("speed", "key"), [(1.0, "out/wav"), (0.8, "out/wav_speed0.8")])
def test_speech_is_the_references(xtts, spoken, speed, key):
    voice = Voice(spoken["out/cond_latents_30s_chunk4"][0], spoken["out/speaker_embedding"][0, :, 0])
    row = Row(tuple(spoken["in/text_ids"][0].tolist()), voice, (0, 0))
    settings = SpeechSettings(greedy=True, repetition_penalty=5.0, speed=speed)
    (said,) = CodeGenerator(xtts.gpt).generate([row], settings)
    np.testing.assert_array_equal(said.codes_M[None], spoken["out/codes"])
    assert differ(said.latents_MC[None], spoken["out/gpt_latents"]) < 1e-4
    wav = DecoderVocoder(xtts.decoder).start(voice, speed).render(said.codes_M, said.latents_MC, is_last=True)
    assert differ(wav, spoken[key]) < 1e-3


# A GPT that is led by true codes.
IDS = [5, 9, 30, 12]


@pytest.fixture(scope="module")
def voice(xtts):
    draw = np.random.default_rng(1)
    return Voice(draw.normal(size=(32, xtts.gpt.size.width)).astype(np.float32), np.zeros(0, np.float32))


@pytest.fixture(scope="module")
def teacher(xtts):
    return TeacherForcing(xtts)


def test_what_the_model_says_by_itself_it_predicts_to_the_last_code(xtts, teacher, voice):
    said = generate(xtts.gpt, tf.constant(voice.prompt_PC[None]), tf.constant([IDS]), rule=Greedy(1.0), max_codes=20)
    codes = said.codes_BM[0, : int(said.count)].numpy().astype(np.int32)
    assert codes.max() < xtts.gpt.size.start_audio_token
    assert len(codes) <= teacher.count_hits(codes, IDS, voice) <= len(codes) + 1
    assert teacher.count_hits((codes + 1) % 20, IDS, voice) < len(codes) / 2
    assert teacher.count_hits(codes, IDS[::-1], voice) < len(codes)


def test_what_is_too_long_is_refused(xtts, teacher, voice):
    with pytest.raises(SequenceTooLongError, match="codes"):
        teacher.count_hits(np.zeros(xtts.gpt.size.max_audio_tokens, np.int32), IDS, voice)
    with pytest.raises(SequenceTooLongError, match="tokens"):
        teacher.count_hits(np.zeros(3, np.int32), [1] * (xtts.gpt.size.max_text_tokens + 1), voice)
