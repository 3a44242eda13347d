"""The two families of errors, and those that more than one module knows; any other stands where it is raised.

Two families, so that a caller (and the command line's exit code) can tell whose turn it is:
`UserError` is for input that somebody can correct, `MachineError` for a machine that cannot do what was asked.
Messages say what must be, what is, and what to do."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from signal import Signals


class MyXTTSError(Exception):
    """Base of all errors raised on purpose. The command line prints the message, without a traceback."""

    exit_code = 1


class UserError(MyXTTSError, ValueError):
    """Something the user gave cannot be used as it is: a flag, a YAML value, a file."""

    exit_code = 2


class MachineError(MyXTTSError, RuntimeError):
    """The machine, its drivers or TensorFlow cannot do what was asked."""


class FileError(UserError):
    """A file that cannot be read as what it should be; `problem` says so in sentences that follow the file's name."""

    def __init__(self, path: str | os.PathLike[str], problem: str):
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class ConfigError(UserError):
    """One or more settings cannot be used: pairs of dotted key (may be empty) and what is wrong with it, in the order found."""

    def __init__(self, *problems: tuple[str, str]):
        self.problems = problems
        super().__init__("\n".join(f"{key} {text}" if key else text for key, text in self.problems))


class CommandLineError(UserError):
    """The words on the command line do not fit together."""


class DevicePlanError(UserError):
    """The devices asked for cannot be had on this machine."""


class DevicesInUseError(MachineError):
    """TensorFlow was initialised before a device plan could be applied."""


class NvmlError(MachineError):
    """The NVIDIA driver's library is there but does not answer as it should."""


class WorkFailedError(MachineError):
    """A part of the pipeline's work failed. Names it; its cause is the original error."""


class WorkStalledError(MachineError):
    """Work makes no progress or does not stop. Carries its stack."""


class ProducerFailedError(MachineError):
    """The producer process cannot go on: it died too often, or failed in a way a restart cannot mend."""


CONVERT = "Convert it: ffmpeg -i INPUT OUTPUT.flac"
COPY = "Copy it anew from its source, or take it out of the metadata."
REPLACE = "Replace the file, or take it out of the metadata."


class HeadLostError(ProducerFailedError):
    """The head of a Ray cluster is gone, and with it all who prepare there."""


class DropReason(StrEnum):
    """Why a line of the metadata gives no clip, or a clip cannot be used. The order is that of drop reports."""

    MALFORMED_LINE = "malformed_line"
    DUPLICATE = "duplicate"
    SYMLINK = "symlink"
    MISSING = "missing"
    """There is no such file."""
    UNREADABLE = "unreadable"
    """It may not be opened, the disk gives errors, or something else than a file stands there."""
    EMPTY = "empty"
    """A file without a single sample."""
    UNSUPPORTED = "unsupported"
    """Sound, but in a form that cannot be read here; converting the file helps."""
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    """The file ends before the sound its header promises."""
    NAN = "nan"
    """Samples that are not numbers, or infinite."""
    SILENT = "silent"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    LANGUAGE = "language"
    TEXT_EMPTY = "text_empty"
    TEXT_TOO_LONG = "text_too_long"
    UNKNOWN_CHARACTERS = "unknown_characters"
    NO_PAUSE = "no_pause"
    """Cut from longer speech where it was quietest, perhaps inside a word."""
    CLIPPED = "clipped"
    """Peaks are cut off at full scale."""
    NOISY = "noisy"
    NOT_IN_SCRIPT = "not_in_script"
    MISHEARD = "misheard"
    """A recogniser hears other words than the text has."""
    SPEAKING_RATE = "speaking_rate"
    """Far from that of the other clips: words are missing, or added."""
    OTHER_VOICE = "other_voice"
    """Unlike the other clips of the same recording or speaker."""
    BY_HAND = "by_hand"
    CHANGED = "changed"
    """Since the scan."""


class ClipError(UserError):
    """A clip that cannot be used: why, for counting, and what is wrong with this file and what to do, in words."""

    def __init__(self, path: Path, reason: DropReason, text: str):
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {text}")


class CorpusError(UserError):
    """A corpus, its metadata or a place in it that a run cannot be made with as it was asked for."""


class ReadingError(MachineError):
    """Reading failed by no fault of a clip's: a disk or a folder is gone, or a process that reads broke."""


class EvaluationError(UserError):
    """What cannot be evaluated as asked: no sentence is left, or a judge cannot be called."""


class JudgeFailedError(MachineError):
    """A judge gave no answer, or none that can be used."""


class UnsupportedLanguageError(UserError):
    """A language MyXTTS has no cleaning for."""


class MissingLanguagePackageError(MachineError):
    """A package that only some languages need is not installed."""


class VocabularyError(UserError):
    """A vocabulary file that cannot be read, is not a vocabulary, or lacks what XTTS needs."""


class MissingLanguageTagError(VocabularyError):
    """A vocabulary without the tag of the language asked for."""


class LexiconError(UserError):
    """A file of words and how they are read that cannot be used."""


class SpeechRequestError(UserError):
    """A text or a setting that nothing can be said with."""


class SpeechSettingError(SpeechRequestError):
    """A setting of `SpeechSettings` with a value that is none of its; `problem` is a sentence that follows its name."""

    def __init__(self, name: str, problem: str):
        self.name = name
        self.problem = problem
        super().__init__(f"{name} {problem}")


class VoiceError(UserError):
    """A reference, voice file or name that gives no voice."""


class UnableToSpeakError(UserError):
    """A model that lacks what speaking takes."""


class MemoryBillError(UserError):
    """What a run needs does not fit into the memory of a device."""


class NotARunError(UserError):
    """What should be the folder of a run, or what a run wrote there, is none."""


class ClusterError(UserError):
    """The cluster that was described cannot be used as it is."""


class CheckpointError(UserError):
    """A model or a checkpoint cannot be used as it is."""


class ModelFileError(FileError):
    """A file is not the model file it should be: another format, cut short, damaged, or made to do harm."""


class DamagedFileError(ModelFileError):
    """Part of a sealed directory is missing, cut short, changed or unreadable on the disk: an older copy may do."""


class UnsafeModelFileError(ModelFileError):
    """A model file names a Python object that is not in the reader's closed list: its dotted name, as the file spells it."""

    def __init__(self, path: Path | str, global_name: str):
        self.global_name = global_name
        super().__init__(
            path,
            f"asks for the Python object {global_name!r}, which no model file needs. Nothing was executed. "
            "Get the file from its publisher; if it is your own, save only tensors, numbers and text in it.",
        )


class RunFolderError(UserError):
    """The folder of the run cannot be used as it is: another process trains there, or there is nothing to resume."""


class RunChangedError(RunFolderError):
    """The settings with these dotted keys would change the result of the run that is to go on."""

    def __init__(self, message: str, keys: tuple[str, ...]):
        self.keys = keys
        super().__init__(message)


class RunFinishedError(MyXTTSError):
    """The run in a folder is finished, with so many updates, and nothing more was asked of it. Not a failure: a job that is
    started again ends well."""

    exit_code = 0

    def __init__(self, message: str, folder: Path, step: int):
        self.folder = folder
        self.step = step
        super().__init__(message)


class RunStoppedError(MyXTTSError):
    """A signal asked for an end while no update was being made. Not a failure: nothing is lost. Without a command where
    nothing was trained that could be resumed."""

    def __init__(self, message: str, signal: Signals, resume_command: str | None):
        self.signal = signal
        self.resume_command = resume_command
        self.exit_code = choose_exit_code(signal)
        super().__init__(message)


def choose_exit_code(signal: Signals | None, *, is_worker: bool = False) -> int:
    """The exit code of a run that was asked to stop and did: who sends SIGTERM wants that, who presses Ctrl-C breaks it off."""
    if signal != Signals.SIGTERM:
        return 128 + Signals.SIGINT
    # Kubernetes would take 0 from a pod that has to move for a run that is done, and never start it again.
    return os.EX_TEMPFAIL if is_worker else 0


class GradientMemoryError(MachineError):
    """Out of memory while gradients were computed, in the smallest parts that are allowed. Nothing was changed."""


class UpdateMemoryError(MachineError):
    """Out of memory inside an update: the model in memory is of no use any more."""


class ValidationMemoryError(MachineError):
    """Out of memory while a validation batch was evaluated, in the smallest parts that are allowed. Nothing was changed."""


class PlacementError(MachineError):
    """The devices, or what is on them, are not as the plan says."""


class StartingPointError(UserError):
    """The model to start from does not fit what was asked for, or is none."""


class NotTrainingError(UserError):
    """What a training makes was asked for before there was one."""
