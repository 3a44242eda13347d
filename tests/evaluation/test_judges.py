"""Who listens: known judges in their process, functions, commands, and what is wrong with them."""

import sys
import textwrap

import numpy as np
import pytest

from myxtts.errors import EvaluationError, JudgeFailedError
from myxtts.evaluation import judges as judge_process
from myxtts.evaluation.judges import (
    JUDGE_PYTHON,
    RECOGNISER,
    SPEAKER_JUDGE,
    JudgeChoice,
    open_judge,
)
from myxtts.evaluation.sentences import write_wav

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
    with open_judge(RECOGNISER, JudgeChoice("moonshine", python=sys.executable)) as judge:
        assert judge.languages == ("en",)
        assert judge.ask(make_wav(800), "en") == "800 at 16000 800 at 16000"
        with pytest.raises(JudgeFailedError, match="too short"):
            judge.ask(make_wav(1), "en")
        assert judge.ask(make_wav(9), "en") == "9 at 16000 9 at 16000"
        with pytest.raises(JudgeFailedError, match="ended without an answer"):
            judge.ask(make_wav(2), "en")
        with pytest.raises(JudgeFailedError, match="moonshine"):
            judge.ask(make_wav(9), "en")


def test_a_judge_that_does_not_answer_is_given_up(packages, make_wav, monkeypatch):
    (packages / "moonshine_voice" / "transcriber.py").write_text(
        "import time\nclass Transcriber:\n    def __init__(self, *a): pass\n"
        "    def transcribe_without_streaming(self, *a): time.sleep(600)\n"
    )
    with open_judge(RECOGNISER, JudgeChoice("moonshine", python=sys.executable)) as judge:
        monkeypatch.setattr(judge_process, "ANSWER_SECONDS", 0.2)
        with pytest.raises(JudgeFailedError, match=r"no answer within 0\.2 s"):
            judge.ask(make_wav(9), "en")


def refuse(kind, choice, message):
    with pytest.raises(EvaluationError, match=message), open_judge(kind, choice):
        pass


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setenv(JUDGE_PYTHON, sys.executable)
    message = r"moonshine_voice.*pip install numpy moonshine-voice==0\.1\.0.*--judge-python"
    refuse(RECOGNISER, JudgeChoice("moonshine"), message)
    refuse(SPEAKER_JUDGE, JudgeChoice("resemblyzer"), r"resemblyzer.*pip install torch")


@pytest.mark.parametrize("choice", [JudgeChoice(), JudgeChoice("none")])
def test_nobody_is_asked_unless_somebody_is_named(choice):
    with open_judge(RECOGNISER, choice) as judge:
        assert judge is None


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
    refuse(RECOGNISER, choice, message)


EARS = """
def hear(path, language): return f'{path[-5:]} {language}'
def fail(path, language): raise KeyError('x')
def number(path, language): return 3
def voice(path, language): return [3, 4]
"""
PRINT = "sh -c 'echo {}' {{wav}}"


@pytest.mark.parametrize(
    ("choice", "heard", "message"),
    [
        (JudgeChoice("my_ears:hear"), "9.wav fa", None),
        (JudgeChoice("my_ears:fail"), None, "my_ears:fail: KeyError"),
        (JudgeChoice("my_ears:number"), None, "must give a text, but gave int"),
        (JudgeChoice("my_ears:voice"), [0.6, 0.8], None),
        (JudgeChoice(command="echo 'heard {language}' {wav}"), "heard fa {wav}", None),
        (JudgeChoice(command="cat {wav}.none"), None, "ended with code 1"),
        (JudgeChoice(command=PRINT.format("[0, -2.5]")), [0, -1], None),
        (JudgeChoice("my_ears:hear"), [], "numbers of a voice"),
        (JudgeChoice(command="echo {wav}"), [], "numbers of a voice, but gave .*9.wav"),
        (JudgeChoice(command=PRINT.format("0 0")), [], "length 0"),
    ],
)
def test_functions_and_commands_hear_path_and_language(packages, make_wav, choice, heard, message):
    (packages / "my_ears.py").write_text(EARS)
    with open_judge(SPEAKER_JUDGE if isinstance(heard, list) else RECOGNISER, choice) as judge:
        if message is not None:
            with pytest.raises(JudgeFailedError, match=message):
                judge.ask(make_wav(9), "fa")
        elif isinstance(heard, list):
            np.testing.assert_allclose(judge.ask(make_wav(9), "fa"), heard)
        else:
            assert judge.ask(make_wav(9), "fa") == heard.replace("{wav}", str(make_wav(9)))
