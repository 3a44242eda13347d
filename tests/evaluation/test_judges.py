"""Who listens: known judges in their process, functions, commands, and what is wrong with them."""

import sys

import numpy as np
import pytest

from myxtts.errors import EvaluationError, JudgeFailedError
from myxtts.evaluation import judges as judge_module
from myxtts.evaluation.judges import RECOGNISER, SPEAKER_JUDGE, JudgeChoice, open_judge
from myxtts.evaluation.sentences import write_wav

WORKER = """
import os, sys, wave
print({ready!r}, flush=True)
for line in sys.stdin:
    path, language = line.rstrip("\\n").split("\\t")
    frames = wave.open(path).getnframes()
    if frames == 2:
        sys.exit("broken by it")
    print("error: too short" if frames == 1 else f"{{frames}} in {{language}}", flush=True)
"""


@pytest.fixture
def make_wav(tmp_path):
    def make(samples):
        path = tmp_path / f"{samples}.wav"
        write_wav(path, np.zeros(samples, np.float32), 16000)
        return path

    return make


def make_worker(tmp_path, source):
    (tmp_path / "worker.py").write_text(source)
    return JudgeChoice(command=f"{sys.executable} {tmp_path / 'worker.py'}")


def test_a_command_that_runs_on_is_started_once_and_outlives_a_bad_clip(tmp_path, make_wav):
    with open_judge(RECOGNISER, make_worker(tmp_path, WORKER.format(ready="ready"))) as judge:
        assert judge.ask(make_wav(800), "en") == "800 in en"
        with pytest.raises(JudgeFailedError, match="too short"):
            judge.ask(make_wav(1), "en")
        assert judge.ask(make_wav(9), "fa") == "9 in fa"
        with pytest.raises(JudgeFailedError, match=r"ended without an answer.*broken by it"):
            judge.ask(make_wav(2), "en")
        with pytest.raises(JudgeFailedError, match="broken by it"):
            judge.ask(make_wav(9), "en")


def test_a_command_that_does_not_answer_is_given_up(tmp_path, make_wav, monkeypatch):
    source = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
    with open_judge(RECOGNISER, make_worker(tmp_path, source)) as judge:
        monkeypatch.setattr(judge_module, "ANSWER_SECONDS", 0.2)
        with pytest.raises(JudgeFailedError, match=r"no answer within 0\.2 s"):
            judge.ask(make_wav(9), "en")


def refuse(kind, choice, message):
    with pytest.raises(EvaluationError, match=message), open_judge(kind, choice):
        pass


@pytest.mark.parametrize("choice", [JudgeChoice(), JudgeChoice("none")])
def test_nobody_is_asked_unless_somebody_is_named(choice):
    with open_judge(RECOGNISER, choice) as judge:
        assert judge is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (JudgeChoice("kaldi"), "no recogniser 'kaldi'. Give --recogniser module:function.*judges/moonshine.py"),
        (JudgeChoice("no_such_module:hear"), "cannot be imported"),
        (JudgeChoice("json:hear"), "no function 'hear'"),
        (JudgeChoice(command="true"), "without {wav} must go on"),
        (JudgeChoice(command=f"{sys.executable} -c 'import nothing'"), r"must go on(.|\n)*No module named 'nothing'"),
        (JudgeChoice(command=""), "must be a program"),
        (JudgeChoice(command="cat '{wav}"), "quotes"),
        (JudgeChoice(command="no-such-program {wav}"), "no 'no-such-program"),
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
        (JudgeChoice(command="echo {wav}"), [], "numbers of a voice, but gave .*/test_"),
        (JudgeChoice(command=PRINT.format("0 0")), [], "length 0"),
    ],
)
def test_functions_and_commands_hear_path_and_language(tmp_path, monkeypatch, make_wav, choice, heard, message):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_ears.py").write_text(EARS)
    with open_judge(SPEAKER_JUDGE if isinstance(heard, list) else RECOGNISER, choice) as judge:
        if message is not None:
            with pytest.raises(JudgeFailedError, match=message):
                judge.ask(make_wav(9), "fa")
        elif isinstance(heard, list):
            np.testing.assert_allclose(judge.ask(make_wav(9), "fa"), heard)
        else:
            assert judge.ask(make_wav(9), "fa") == heard.replace("{wav}", str(make_wav(9)))
