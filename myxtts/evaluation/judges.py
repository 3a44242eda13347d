"""Who listens: recognisers, which write down what they hear, and speaker judges, which say whose voice it is.

A judge is one that MyXTTS knows by name, a Python function (`module:function`), or a command. Known ones run in a process
of their own, by any Python that has their package. All hear the same files: wav, 16 kHz, mono, 16 bit.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.config.section import nearest_name
from myxtts.evaluation.errors import JudgeFailedError, JudgeRequestError
from myxtts.evaluation.judge_process import JudgeProcess, run_command

JUDGE_RATE_HZ = 16_000
JUDGE_PYTHON = "MYXTTS_JUDGE_PYTHON"
NONE, OWN = "none", "own"
WAV_PLACE, LANGUAGE_PLACE = "{wav}", "{language}"

_NO_BRACKETS = str.maketrans("[](),;", "      ")


@dataclass(frozen=True)
class Judge:
    """Answers a question about a clip."""

    name: str
    """For people: what was asked."""
    ask: Callable[[Path, str], Any]
    """The answer about a wav in a language. Raises `JudgeFailedError` where there is none."""
    languages: tuple[str, ...] | None = None
    """Languages it understands; None for whatever it is given."""


@dataclass(frozen=True)
class KnownJudge:
    """A judge that has an adapter."""

    install: str
    """The command that installs it."""
    languages: tuple[str, ...] | None = None


@dataclass(frozen=True)
class JudgeKind:
    """What judges of one kind have in common."""

    what: str
    """In words."""
    flag: str
    answer: str
    """The key of a worker's answer."""
    known: Mapping[str, KnownJudge]
    parse: Callable[[str], Any]
    """Turns what a command prints into an answer."""


def _parse_numbers(printed: str) -> list[float]:
    try:
        return [float(number) for number in printed.translate(_NO_BRACKETS).split()]
    except ValueError:
        raise JudgeFailedError(f"A speaker judge's command must print numbers, but printed {printed[:80]!r}.") from None


RECOGNISER = JudgeKind(
    what="recogniser",
    flag="--recogniser",
    answer="text",
    known={"moonshine": KnownJudge("pip install numpy moonshine-voice==0.1.0", ("en",))},
    parse=str.strip,
)
SPEAKER_JUDGE = JudgeKind(
    what="speaker judge",
    flag="--speaker-judge",
    answer="vector",
    known={"resemblyzer": KnownJudge("pip install torch==2.13.0 'setuptools<81' numpy resemblyzer")},
    parse=_parse_numbers,
)


@dataclass(frozen=True)
class JudgeChoice:
    """Which judge is asked for; at most one of the two."""

    name: str | None = None
    """A known name, `module:function`, or `none`."""
    command: str | None = None
    python: str | None = None
    """For known ones; by default the one in `MYXTTS_JUDGE_PYTHON`, or our own."""


@contextmanager
def open_judge(kind: JudgeKind, choice: JudgeChoice) -> Iterator[Judge | None]:
    """The judge that is asked for, ready to listen until the block ends; None where none is.

    Raises `JudgeRequestError` for one that is unknown, cannot be called or lacks its package.
    """
    if choice.command is not None:
        yield _make_command_judge(kind, choice.command)
    elif choice.name is None or choice.name == NONE:
        yield None
    elif ":" in choice.name:
        yield _make_function_judge(kind, choice.name)
    elif choice.name in kind.known:
        python = choice.python or os.environ.get(JUDGE_PYTHON) or sys.executable
        with closing(JudgeProcess(python, choice.name)) as process:
            yield _make_process_judge(kind, choice.name, python, process)
    else:
        near = nearest_name(choice.name, list(kind.known))
        hint = f"Did you mean {near}?" if near else f"There is: {', '.join(kind.known)}."
        raise JudgeRequestError(
            f"{kind.flag} knows no {kind.what} {choice.name!r}. {hint} Others can be given as module:function, or with "
            f"{kind.flag}-command."
        )


def transcribe(judge: Judge, wav: Path, language: str) -> str:
    """What a recogniser heard."""
    heard = judge.ask(wav, language)
    if not isinstance(heard, str):
        raise JudgeFailedError(f"{judge.name} must give a text, but gave {type(heard).__name__}.")
    return heard


def embed_voice(judge: Judge, wav: Path, language: str) -> NDArray[np.float64]:
    """The voice a speaker judge heard, as a vector of length 1."""
    try:
        vector = np.asarray(judge.ask(wav, language), np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise JudgeFailedError(f"{judge.name} must give the numbers of a voice, but gave something else.") from None
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or not length:
        raise JudgeFailedError(f"{judge.name} must give the numbers of a voice, but gave a vector of length {length}.")
    return vector / length


def _make_process_judge(kind: JudgeKind, name: str, python: str, process: JudgeProcess) -> Judge:
    known = kind.known[name]
    missing = process.read_greeting().get("missing")
    if missing is not None:
        raise JudgeRequestError(
            f"The {kind.what} {name} needs the Python package {missing}, which {python} does not have. Install it, best in "
            f"an environment of its own: {known.install}; then give that environment's Python with --judge-python or "
            f"{JUDGE_PYTHON}."
        )

    def ask(wav: Path, language: str) -> Any:
        reply = process.ask({"wav": str(wav)})
        if "error" in reply:
            raise JudgeFailedError(f"{name}: {reply['error']}")
        return reply[kind.answer]

    return Judge(name, ask, known.languages)


def _make_command_judge(kind: JudgeKind, command: str) -> Judge:
    """A command, run for each clip."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise JudgeRequestError(f"{kind.flag}-command cannot be read: {error}. Check its quotes.") from None
    if not any(WAV_PLACE in word for word in words):
        raise JudgeRequestError(
            f"{kind.flag}-command must say where the sound file goes, with {WAV_PLACE}, but is {command!r}."
        )
    if shutil.which(words[0]) is None:
        raise JudgeRequestError(f"{kind.flag}-command must be a program, but there is no {words[0]!r}.")

    def ask(wav: Path, language: str) -> Any:
        filled = [word.replace(WAV_PLACE, str(wav)).replace(LANGUAGE_PLACE, language) for word in words]
        return kind.parse(run_command(filled))

    return Judge(Path(words[0]).name, ask)


def _make_function_judge(kind: JudgeKind, name: str) -> Judge:
    """A Python function of a path and a language, in this process."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError as error:
        raise JudgeRequestError(f"{kind.flag} {name}: {module_name} cannot be imported: {error}.") from error
    if not callable(function):
        raise JudgeRequestError(f"{kind.flag} {name}: {module_name} has no function {function_name!r}.")

    def ask(wav: Path, language: str) -> Any:
        try:
            return function(str(wav), language)
        except Exception as error:
            raise JudgeFailedError(f"{name}: {type(error).__name__}: {error}") from error

    return Judge(name, ask)
