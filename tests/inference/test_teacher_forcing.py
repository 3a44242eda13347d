"""A GPT that is led by true codes."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.inference.synthesizer import TeacherForcing
from myxtts.inference.voices import Voice
from myxtts.models.decoding import Greedy, generate
from myxtts.models.gpt import SequenceTooLongError
from tests.inference.builders import build_reference_xtts

IDS = [5, 9, 30, 12]


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts(decoder=False, dvae=False)


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
