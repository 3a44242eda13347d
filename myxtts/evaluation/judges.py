"""Who listens: recognisers, which write down what they hear, and speaker judges, which say whose voice it is;
and what an evaluation asks of them.

A judge is a Python function (`module:function`) or a command: one that is run for each clip, or one that is started once and
answers line by line (`examples/judges`). All hear the same files: wav, 16 kHz, mono, 16 bit."""

from __future__ import annotations

import importlib
import logging
import select
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.checkpoints.model_directory import VOCABULARY_NAME, read_model_directory
from myxtts.checkpoints.store import find_model_directory
from myxtts.data.scan import ScanResult, scan_data
from myxtts.errors import EvaluationError, JudgeFailedError, MyXTTSError
from myxtts.evaluation.results import SPOKEN, Figures
from myxtts.evaluation.scores import Vector, compare_voices
from myxtts.evaluation.sentences import (
    PromptKind,
    Recordings,
    Sentence,
    Split,
    choose_part,
    choose_recordings,
    choose_sentences,
    find_other_voices,
    write_wav,
)
from myxtts.inference.speech import SpeechSettings, require_able_to_speak
from myxtts.inference.voices import read_references
from myxtts.processes import end_child, read_end

_log = logging.getLogger(__name__)


ANSWER_SECONDS = 300.0
STOP_SECONDS = 10.0
_TOLD_BYTES = 2000

JUDGE_RATE_HZ = 16_000
NONE, OWN = "none", "own"
WAV_PLACE, LANGUAGE_PLACE = "{wav}", "{language}"
FAILED = "error:"
"""With which a command that runs on says that it has no answer about a clip."""


@dataclass(frozen=True)
class JudgeKind:
    """What judges of one kind have in common."""

    what: str
    """In words."""
    flag: str
    check: Callable[[str, Any], Any]
    """An answer as it is used, of what a judge of some name gave; a command gives what it prints."""
    example: str
    """One of `examples/judges`."""

    @property
    def how(self) -> str:
        """The ways to have one."""
        return f"Give {self.flag} module:function, or {self.flag}-command 'COMMAND {{wav}}'; examples/judges/{self.example} is one."


def _check_text(name: str, heard: Any) -> str:
    if not isinstance(heard, str):
        raise JudgeFailedError(f"{name} must give a text, but gave {type(heard).__name__}.")
    return heard.strip()


def _check_voice(name: str, numbers: Any) -> Vector:
    """The voice as a vector of length 1."""
    if isinstance(numbers, str):
        numbers = numbers.translate(str.maketrans("[](),;", "      ")).split()
    try:
        vector = np.asarray(numbers, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise JudgeFailedError(f"{name} must give the numbers of a voice, but gave {str(numbers)[:80]}.") from None
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or not length:
        raise JudgeFailedError(f"{name} must give the numbers of a voice, but gave a vector of length {length}.")
    return vector / length


RECOGNISER = JudgeKind("recogniser", "--recogniser", _check_text, "moonshine.py")
SPEAKER_JUDGE = JudgeKind("speaker judge", "--speaker-judge", _check_voice, "resemblyzer_voice.py")


@dataclass(frozen=True)
class Judge:
    """Answers a question about a clip."""

    kind: JudgeKind
    name: str
    """For people: what was asked."""
    answer: Callable[[Path, str], Any]
    """Its own answer about a wav in a language. May raise anything."""

    def ask(self, wav: Path, language: str) -> Any:
        """The text, or the voice as a vector of length 1. Raises `JudgeFailedError` where there is none."""
        try:
            answer = self.answer(wav, language)
        except JudgeFailedError:
            raise
        except Exception as error:
            raise JudgeFailedError(f"{self.name}: {type(error).__name__}: {error}") from error
        return self.kind.check(self.name, answer)


@dataclass(frozen=True)
class JudgeChoice:
    """Which judge is asked for; at most one of the two."""

    name: str | None = None
    """`module:function`, or `none`."""
    command: str | None = None


@contextmanager
def open_judge(kind: JudgeKind, choice: JudgeChoice) -> Iterator[Judge | None]:
    """The judge that is asked for, ready to listen until the block ends; None where none is.

    Raises `EvaluationError` for one that is unknown, or cannot be called or started.
    """
    if choice.command is None:
        yield None if choice.name in (None, NONE) else _make_function_judge(kind, str(choice.name))
        return
    try:
        words = shlex.split(choice.command)
    except ValueError as error:
        raise EvaluationError(f"{kind.flag}-command cannot be read: {error}. Check its quotes.") from None
    if not words or shutil.which(words[0]) is None:
        raise EvaluationError(f"{kind.flag}-command must be a program, but there is no {choice.command!r}.")
    name = Path(words[0]).name
    if any(WAV_PLACE in word for word in words):
        yield Judge(kind, name, partial(_run_command, words))
        return
    with closing(RunningCommand(words)) as command:
        try:
            command.read()
        except JudgeFailedError as error:
            raise EvaluationError(
                f"{kind.flag}-command without {WAV_PLACE} must go on, and say a line when it is ready. {error}"
            ) from None
        yield Judge(kind, name, command.answer)


def _run_command(words: Sequence[str], wav: Path, language: str) -> str:
    """What a command prints about a clip."""
    filled = [word.replace(WAV_PLACE, str(wav)).replace(LANGUAGE_PLACE, language) for word in words]
    try:
        result = subprocess.run(
            filled, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise JudgeFailedError(f"`{words[0]}` gave no answer within {ANSWER_SECONDS:g} s.") from None
    if result.returncode:
        told = result.stderr.strip()[-_TOLD_BYTES:]
        raise JudgeFailedError(f"`{words[0]}` ended with code {result.returncode}. Its last words: {told}")
    return result.stdout


class RunningCommand:
    """A command that says a line when it is ready, and then answers every line of path, tab and language by a line."""

    def __init__(self, words: Sequence[str]):
        self._name = words[0]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # What is read ahead would not be seen by `select`.
            bufsize=0,
            # Ctrl-C is ours to answer: the judge ends when we close its input.
            start_new_session=True,
        )

    def answer(self, wav: Path, language: str) -> str:
        """What it says of a clip. Raises `JudgeFailedError` where it says nothing."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{wav}\t{language}\n".encode())
        except BrokenPipeError:
            raise self._explain("is no longer there") from None
        said = self.read()
        if said.startswith(FAILED):
            raise JudgeFailedError(f"`{self._name}`: {said.removeprefix(FAILED).strip()}")
        return said

    def close(self) -> None:
        """Ends the process."""
        end_child(self._process, STOP_SECONDS)
        self._log.close()

    def read(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            self._process.kill()
            raise self._explain(f"gave no answer within {ANSWER_SECONDS:g} s")
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._explain("ended without an answer")
        return line.decode("utf-8", "replace")

    def _explain(self, what: str) -> JudgeFailedError:
        told = read_end(self._log.fileno(), _TOLD_BYTES)
        last = f" Its last words: {told}" if told else ""
        return JudgeFailedError(f"`{self._name}` {what}.{last}")


def _make_function_judge(kind: JudgeKind, name: str) -> Judge:
    """A Python function of a path and a language, in this process."""
    if ":" not in name:
        raise EvaluationError(f"{kind.flag} knows no {kind.what} {name!r}. {kind.how}")
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError as error:
        raise EvaluationError(f"{kind.flag} {name}: {module_name} cannot be imported: {error}.") from error
    if not callable(function):
        raise EvaluationError(f"{kind.flag} {name}: {module_name} has no function {function_name!r}.")
    return Judge(kind, name, lambda wav, language: function(str(wav), language))


LANGUAGE_OF_OTHERS = "en"
"""Told to a speaker judge that wants a language, of recordings that have none."""


class Jury:
    """Asks the judges, of whom each may be missing, and keeps what could not be had (`failures`) and the voices it knows.

    What they hear is written into a folder.
    """

    def __init__(self, recogniser: Judge | None, speaker_judge: Judge | None, folder: Path):
        self.recogniser, self.speaker_judge = recogniser, speaker_judge
        self.failures: list[Figures] = []
        self.speakers: dict[str, dict[str, Vector]] = {}
        self._wav = folder / "clip.wav"

    def meet_speakers(self, recordings: Mapping[str, Mapping[str, Path]]) -> None:
        """Hears recordings of each speaker, by name; one that cannot be heard is a failure, not an error."""
        if self.speaker_judge is None:
            return
        for speaker, files in recordings.items():
            for name, path in files.items():
                try:
                    samples = read_clip(path, JUDGE_RATE_HZ)
                except MyXTTSError as error:
                    self._note(name, "likeness", error)
                    continue
                vector = self._ask(self.speaker_judge, samples, LANGUAGE_OF_OTHERS, name, "likeness")
                if vector is not None:
                    self.speakers.setdefault(speaker, {})[name] = vector

    def transcribe(self, sentence: Sentence, kind: str, samples: NDArray[np.float32]) -> str | None:
        """What the recogniser hears at 16 kHz; None where there is none, or it failed."""
        if self.recogniser is None:
            return None
        heard = self._ask(self.recogniser, samples, sentence.language, sentence.name, f"transcript of {kind}")
        return None if heard is None else str(heard)

    def compare_voice(
        self, sentence: Sentence, kind: str, samples: NDArray[np.float32]
    ) -> dict[str, float | None] | None:
        """Whose voice it is; None where no judge was asked, it failed, or the voice was given and this is a recording."""
        if self.speaker_judge is None or (kind != SPOKEN and sentence.prompt_kind is PromptKind.GIVEN):
            return None
        vector = self._ask(self.speaker_judge, samples, sentence.language, sentence.name, f"likeness of {kind}")
        return None if vector is None else compare_voices(self.speakers, vector, sentence.voice_speaker, sentence.name)

    def _ask(self, judge: Judge, samples: NDArray[np.float32], language: str, name: str, what: str) -> Any:
        """The answer; None where the judge failed."""
        write_wav(self._wav, samples, JUDGE_RATE_HZ)
        try:
            return judge.ask(self._wav, language)
        except JudgeFailedError as error:
            self._note(name, what, error)
            return None

    def _note(self, name: str, what: str, error: MyXTTSError) -> None:
        _log.warning("%s: no %s: %s", name, what, error)
        self.failures.append({"name": name, "what": what, "reason": str(error)})


def list_gaps(sentences: Sequence[Sentence], jury: Jury, *, has_codec: bool) -> list[Figures]:
    """Every figure that this evaluation leaves out."""
    gaps: list[tuple[str, str, str]] = []
    if jury.recogniser is None:
        gaps.append(("Word and character error rates", "no recogniser was asked.", RECOGNISER.how))
    if jury.speaker_judge is None:
        gaps.append(("Whose voice it is", "no speaker judge was asked.", SPEAKER_JUDGE.how))
    elif len(jury.speakers) == 1:
        how = "Give a folder with a folder of recordings for each of some others with --other-voices."
        gaps.append(("How alike the voice is to other speakers", "there is only one speaker.", how))
    if jury.speaker_judge is not None and any(sentence.prompt_kind is PromptKind.GIVEN for sentence in sentences):
        why = "the voice was given (--reference), and theirs is another."
        gaps.append(("The voices of recordings and copies", why, "Leave --reference out to compare them."))
    if not has_codec:
        why = "the model has no DVAE, which makes codes of recordings."
        gaps.append(("The codec's copy and the codes predicted", why, "Import it again with --dvae."))
    return [dict(zip(("what", "why", "how"), gap, strict=True)) for gap in gaps]


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be evaluated, and how."""

    checkpoint: Path
    """A model directory, or the folder of a run."""
    data: Path
    out: Path
    limit: int | None
    """The most sentences; None for all."""
    split: Split = "all"
    language: str | None = None
    """Of lines of the metadata that name none; None for what the model was trained with."""
    references: tuple[Path, ...] = ()
    other_voices: Path | None = None
    recogniser: JudgeChoice = field(default_factory=JudgeChoice)
    speaker_judge: JudgeChoice = field(default_factory=JudgeChoice)
    settings: SpeechSettings = field(default_factory=SpeechSettings)


@dataclass(frozen=True)
class Material:
    """What will be spoken, known before a model is loaded."""

    directory: Path
    sentences: list[Sentence]
    recordings: Recordings
    scan: ScanResult


def choose_material(request: EvaluationRequest) -> Material:
    """Looks at the data and chooses the sentences; what is wrong with the request is said here, before a model is loaded."""
    if request.references:
        read_references(request.references)
    others = find_other_voices(request.other_voices) if request.other_voices else {}
    directory = read_model_directory(find_model_directory(request.checkpoint), verify_checksums=False)
    require_able_to_speak(directory)
    # As its training would have chosen the clips.
    language = {} if request.language is None else {"language": request.language}
    config = directory.config.replace(data={"train_data": str(request.data), "strict": False, **language})
    scan = scan_data(config, "train", directory.path / VOCABULARY_NAME)
    clips = choose_part(scan.corpus, request.split, directory.config.training.seed)
    sentences = choose_sentences(scan.corpus, clips, request.limit, request.references)
    recordings = choose_recordings(scan.corpus, sentences, request.references)
    return Material(directory.path, sentences, {**others, **recordings}, scan)


Judges = tuple[Judge | None, Judge | None]
"""Recogniser and speaker judge; None also where the model's own speaker encoder is to be asked."""


@contextmanager
def open_judges(request: EvaluationRequest) -> Iterator[Judges]:
    """The judges that do not need the model, ready to listen; closed at the end of the block."""
    speaker_judge = JudgeChoice() if request.speaker_judge.name == OWN else request.speaker_judge
    with open_judge(RECOGNISER, request.recogniser) as recogniser, open_judge(SPEAKER_JUDGE, speaker_judge) as speaker:
        yield recogniser, speaker
