"""Who listens: known judges in their process, functions, commands, and what is wrong with them."""

import sys
import textwrap

import numpy as np
import pytest

from myxtts.evaluation import judge_process
from myxtts.evaluation.errors import JudgeFailedError, JudgeRequestError
from myxtts.evaluation.judges import (
    JUDGE_PYTHON,
    RECOGNISER,
    SPEAKER_JUDGE,
    JudgeChoice,
    embed_voice,
    open_judge,
    transcribe,
)
from myxtts.evaluation.wav_files import write_wav

MOONSHINE = """
    print("this belongs to nobody's answer")
    class ModelArch:
        TINY = 0
    def get_model_path(name):
        return name
"""
TRANSCRIBER = """
    import os, types
    class Transcriber:
        def __init__(self, path, arch):
            assert path == "tiny-en"
        def transcribe_without_streaming(self, samples, rate_hz):
            if len(samples) == 1:
                raise ValueError("too short")
            if len(samples) == 2:
                os._exit(3)
            line = types.SimpleNamespace(text=f"{len(samples)} at {rate_hz}")
            return types.SimpleNamespace(lines=[line, line])
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder that judges import from, with a stand-in for the recogniser's package."""
    folder = tmp_path / "packages"
    (folder / "moonshine_voice").mkdir(parents=True)
    (folder / "moonshine_voice" / "__init__.py").write_text(textwrap.dedent(MOONSHINE))
    (folder / "moonshine_voice" / "transcriber.py").write_text(textwrap.dedent(TRANSCRIBER))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def make_wav(tmp_path):
    def make(samples):
        path = tmp_path / f"{samples}.wav"
        write_wav(path, np.zeros(samples, np.float32), 16000)
        return path

    return make


def test_a_known_recogniser_runs_in_its_own_process_and_outlives_a_bad_clip(packages, make_wav):
    judge = open_judge(RECOGNISER, JudgeChoice("moonshine", python=sys.executable))
    try:
        assert judge.languages == ("en",)
        assert transcribe(judge, make_wav(800), "en") == "800 at 16000 800 at 16000"
        with pytest.raises(JudgeFailedError, match="too short"):
            transcribe(judge, make_wav(1), "en")
        assert transcribe(judge, make_wav(9), "en") == "9 at 16000 9 at 16000"
        with pytest.raises(JudgeFailedError, match="ended without an answer"):
            transcribe(judge, make_wav(2), "en")
        with pytest.raises(JudgeFailedError, match="moonshine"):
            transcribe(judge, make_wav(9), "en")
    finally:
        judge.close()


def test_a_judge_that_does_not_answer_is_given_up(packages, make_wav, monkeypatch):
    (packages / "moonshine_voice" / "transcriber.py").write_text(
        "import time\nclass Transcriber:\n    def __init__(self, *a): pass\n"
        "    def transcribe_without_streaming(self, *a): time.sleep(600)\n"
    )
    judge = open_judge(RECOGNISER, JudgeChoice("moonshine", python=sys.executable))
    monkeypatch.setattr(judge_process, "ANSWER_SECONDS", 0.2)
    with pytest.raises(JudgeFailedError, match=r"no answer within 0\.2 s"):
        transcribe(judge, make_wav(9), "en")
    judge.close()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setenv(JUDGE_PYTHON, sys.executable)
    with pytest.raises(
        JudgeRequestError, match=r"moonshine_voice.*pip install numpy moonshine-voice==0\.1\.0.*--judge-python"
    ):
        open_judge(RECOGNISER, JudgeChoice("moonshine"))
    with pytest.raises(JudgeRequestError, match=r"resemblyzer.*pip install torch"):
        open_judge(SPEAKER_JUDGE, JudgeChoice("resemblyzer"))


def test_nobody_is_asked_unless_somebody_is_named():
    assert open_judge(RECOGNISER, JudgeChoice()) is None
    assert open_judge(RECOGNISER, JudgeChoice("none")) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (JudgeChoice("moonshin"), "Did you mean moonshine"),
        (JudgeChoice("kaldi"), "There is: moonshine"),
        (JudgeChoice("no_such_module:hear"), "cannot be imported"),
        (JudgeChoice("json:hear"), "no function 'hear'"),
        (JudgeChoice(command="cat"), "{wav}"),
        (JudgeChoice(command="cat '{wav}"), "quotes"),
        (JudgeChoice(command="no-such-program {wav}"), "no 'no-such-program'"),
        (JudgeChoice("moonshine", python="no-such-python"), "no-such-python cannot be started"),
    ],
)
def test_a_judge_that_cannot_be_had_is_refused(choice, message):
    with pytest.raises(JudgeRequestError, match=message):
        open_judge(RECOGNISER, choice)


def test_a_function_hears_path_and_language(packages, make_wav):
    (packages / "my_ears.py").write_text(
        "def hear(path, language): return f'{path[-5:]} {language}'\ndef fail(path, language): raise KeyError('x')\n"
        "def number(path, language): return 3\ndef voice(path, language): return [3, 4]\n"
    )
    assert transcribe(open_judge(RECOGNISER, JudgeChoice("my_ears:hear")), make_wav(9), "fa") == "9.wav fa"
    with pytest.raises(JudgeFailedError, match="my_ears:fail: KeyError"):
        transcribe(open_judge(RECOGNISER, JudgeChoice("my_ears:fail")), make_wav(9), "fa")
    with pytest.raises(JudgeFailedError, match="must give a text, but gave int"):
        transcribe(open_judge(RECOGNISER, JudgeChoice("my_ears:number")), make_wav(9), "fa")
    vector = embed_voice(open_judge(SPEAKER_JUDGE, JudgeChoice("my_ears:voice")), make_wav(9), "fa")
    np.testing.assert_allclose(vector, [0.6, 0.8])
    with pytest.raises(JudgeFailedError, match="numbers of a voice"):
        embed_voice(open_judge(SPEAKER_JUDGE, JudgeChoice("my_ears:hear")), make_wav(9), "fa")


def test_a_command_is_run_for_each_clip(make_wav):
    judge = open_judge(RECOGNISER, JudgeChoice(command="echo 'heard {wav} in {language}'"))
    assert transcribe(judge, make_wav(9), "fa") == f"heard {make_wav(9)} in fa"
    assert judge.name == "echo"
    voice = open_judge(SPEAKER_JUDGE, JudgeChoice(command="sh -c 'echo [0, -2.5]' {wav}"))
    np.testing.assert_allclose(embed_voice(voice, make_wav(9), "en"), [0, -1])
    with pytest.raises(JudgeFailedError, match="ended with code 1"):
        transcribe(open_judge(RECOGNISER, JudgeChoice(command="cat {wav}.none")), make_wav(9), "en")
    with pytest.raises(JudgeFailedError, match="must print numbers"):
        embed_voice(open_judge(SPEAKER_JUDGE, JudgeChoice(command="echo {wav}")), make_wav(9), "en")
    with pytest.raises(JudgeFailedError, match="length 0"):
        embed_voice(open_judge(SPEAKER_JUDGE, JudgeChoice(command="sh -c 'echo 0 0' {wav}")), make_wav(9), "en")
