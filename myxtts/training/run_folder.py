"""The folder of a run (`--checkpoint-dir`): which run is in it, whether it may go on, and from which checkpoint.

run.json          what the run is (`RunRecord`)
run.lock          one trainer at a time
step-.../         checkpoints (`checkpoints.store`)
codec/            a folder like this one, for the codec that a GPT run trains first
decoder/          another one, for the decoder that is trained for the GPT of this run
previous-run-1/   what --reset-training kept aside
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from myxtts.checkpoints.model_directory import ModelContent
from myxtts.checkpoints.store import (
    DECODER_FOLDER,
    Checkpoint,
    CheckpointReader,
    CheckpointStore,
    TrainingCheckpoint,
    TrainingState,
    read_training_checkpoint,
)
from myxtts.checkpoints.tensors import Tensor
from myxtts.config import XTTSConfig
from myxtts.config.sources import dump_sections
from myxtts.errors import RunFinishedError, RunFolderError, StartingPointError
from myxtts.files import (
    FileError,
    MissingFileError,
    OutputFolderError,
    open_file_atomically,
    read_json,
    read_text,
    recover_folder,
    require_makeable_folder,
)
from myxtts.training.resume_rules import (
    Rule,
    Sections,
    compare_configs,
    compare_environments,
    refuse_changes,
    report_moved_end,
    report_rounding,
    restrict_to_codec,
)
from myxtts.training.starting_point import Codec, take_codec

_log = logging.getLogger(__name__)

CODEC_FOLDER = "codec"
RECORD_NAME = "run.json"
_FORMAT = "myxtts run"
_VERSION = 1


@dataclass(frozen=True)
class Start:
    """One of the times the run was started or went on."""

    time: str
    step: int
    command: tuple[str, ...]
    end_step: int
    """Updates of the whole run, as it was then."""
    cwd: str = ""
    """Where the command was given, whose paths may be relative."""


@dataclass(frozen=True)
class RunRecord:
    """What a run is, and how far its processes have said it is."""

    stage: str
    config: Sections
    """The settings in force, as asked for."""
    foreign: tuple[str, ...]
    """Names that were in the folder before the run: not the run's, and left where they are when it is kept aside."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What else the bits of its losses depend on."""
    starts: tuple[Start, ...] = ()
    end_step: int | None = None
    """Updates of the whole run; None until training has begun, when the data are known."""
    ending: str | None = None
    """Why the run is finished; None while it is not."""
    is_early: bool = False
    """Whether it is finished because nothing got better, and not because of its length."""
    choice: Mapping[str, Any] | None = None
    """What `--mode auto` chose, as `ModeChoice.dump` gives it; None where the mode was given."""


def read_record(folder: Path) -> RunRecord | None:
    """The record of the run in a folder; None where there is none."""
    path = folder / RECORD_NAME
    try:
        version = read_json(path, dict).get("version")
        if not isinstance(version, int) or version <= _VERSION:
            return read_json(path, RunRecord)
    except MissingFileError:
        return None
    except FileError as error:
        raise RunFolderError(
            f"{error} Put back a copy of it, or start anew with --reset-training, which keeps everything that is there aside, "
            "or give another --checkpoint-dir."
        ) from None
    raise RunFolderError(
        f"{path}: is a {_FORMAT} of version {version}, but this MyXTTS reads them up to version {_VERSION}. Update MyXTTS, or give "
        "another --checkpoint-dir."
    )


def _write_record(folder: Path, record: RunRecord) -> RunRecord:
    status = "unfinished" if record.ending is None else "finished"
    content = {"format": _FORMAT, "version": _VERSION, "status": status, **dataclasses.asdict(record)}
    with open_file_atomically(folder / RECORD_NAME) as file:
        file.write(f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode())
    return record


def _has_begun(folder: Path) -> bool:
    """Whether something was trained in a folder, or was about to be: a start that failed earlier is no run. A record that cannot be
    read may be one of a run."""
    try:
        records = [read_record(path) for path in (folder, folder / CODEC_FOLDER)]
    except RunFolderError:
        return True
    return any(record is not None and record.starts for record in records)


def locate_run(config: XTTSConfig) -> Path:
    """The folder of the run, whether there is one or not. A decoder trained for the GPT in --checkpoint-dir has one inside that."""
    folder = Path(config.training.checkpoint_dir)
    is_inside = config.training.stage == "decoder" and config.training.init_from is None
    return folder / DECODER_FOLDER if is_inside else folder


def make_resume_command(command: Sequence[str]) -> str:
    """The command that continues the run that another began, for a shell."""
    words = [word for word in command if word not in ("--reset-training", "--resume")]
    return shlex.join([*words, "--resume"])


def describe_progress(folder: Path) -> str | None:
    """How far the run in a folder is, in words; None where nothing was trained. Nothing is opened or locked for it."""
    for path, of_what in ((folder, "it"), (folder / CODEC_FOLDER, "its codec")):
        # Listed only: whether they are whole is looked at when the run goes on.
        if found := CheckpointReader(path).list():
            return f"{found[-1].step} updates of {of_what} are done"
    return None


@contextlib.contextmanager
def open_run(config: XTTSConfig, *, command: Sequence[str], checkpoint: Path | None = None) -> Iterator[RunFolder]:
    """The folder of the run these settings ask for: a new run, or the one in it, as `--resume` and the like say. Nobody else trains
    in it within the block.

    Raises `RunFolderError` when another trains there or --resume finds none, `RunChangedError` when the
    settings would change the result of the run that is there, and `RunFinishedError` when nothing is left to do.

    Args:
        config: the settings as asked for, before anything is worked out from the data.
        checkpoint: of the folder, to go on from instead of its newest one, even if the run is finished.
    """
    # Before the folder is made: a mistyped one must not come into being.
    folder, training = check_run_folder(config), config.training
    with _open_folder(folder, config, training.stage, command, is_reset=training.resume == "reset") as run:
        if checkpoint is not None:
            run.rewind_to(checkpoint)
        if run.is_finished:
            raise run.explain_finished()
        yield run


def check_run_folder(config: XTTSConfig) -> Path:
    """The folder of the run, which is neither made nor opened. Raises what `open_run` does where no run can be in it."""
    folder, given = locate_run(config), Path(config.training.checkpoint_dir)
    if folder != given and not (given / RECORD_NAME).is_file():
        raise RunFolderError(
            f"--stage decoder trains the decoder of a GPT, but there is no run of one in {given}. Train a GPT there first, give "
            "the folder of one with --checkpoint-dir, or any model with --init-from."
        )
    if config.training.resume == "require" and not _has_begun(folder):
        is_there = (folder / RECORD_NAME).is_file()
        why = "the one in it ended before its first step" if is_there else f"no {RECORD_NAME}"
        raise RunFolderError(
            f"{folder}: there is no run to resume ({why}). Check --checkpoint-dir, or leave out --resume to start one."
        )
    try:
        if not folder.is_dir():
            require_makeable_folder(folder, "Give another one with --checkpoint-dir.")
    except OutputFolderError as error:
        raise RunFolderError(str(error)) from None
    return folder


@contextlib.contextmanager
def _open_folder(
    folder: Path, config: XTTSConfig, stage: str, command: Sequence[str], is_reset: bool = False
) -> Iterator[RunFolder]:
    with hold_run_folder(folder):
        complete_interrupted_move(folder)
        recover_folder(folder)
        if is_reset:
            keep_run_aside(folder)
        yield RunFolder(folder, stage, command, config)


@contextlib.contextmanager
def open_worker_folder(
    config: XTTSConfig, index: int, command: Sequence[str], *, is_resumed: bool
) -> Iterator[TrainerFolder]:
    """The folder of a worker that is not the chief, inside that of the run or on a machine of its own."""
    path = Path(config.training.checkpoint_dir) / f"worker-{index}"
    with hold_run_folder(path):
        yield TrainerFolder(path, config.training.stage, command, is_resumed=is_resumed)


class TrainerFolder:
    """The folder of one who trains: its own log and metrics, and nothing that a run is resumed from.

    Of the workers of a cluster the chief alone has a `RunFolder`, with `run.json` and the checkpoints. At every start it hands
    out weights, optimizer and position, so the others need no copy of them, and `--checkpoint-dir` need not be on shared storage.
    """

    is_chief = False

    def __init__(self, path: Path, stage: str, command: Sequence[str], *, is_resumed: bool):
        self.path = path
        self.stage = stage
        self.is_resumed = is_resumed
        """Whether the run goes on from a checkpoint."""
        self._command = tuple(command)

    @property
    def resume_command(self) -> str:
        """The command that continues the run here, for a shell."""
        return make_resume_command(self._command)

    def note_choice(self, choice: Mapping[str, Any] | None) -> None:
        """Keeps what `--mode auto` chose, for the next start of the run; None where the mode was given."""

    def require_codec(self, codec: Codec) -> None:
        """Raises `StartingPointError` when a codec is not the one that the run has learnt the codes of."""

    def begin(self, end_step: int, environment: Mapping[str, Any]) -> int:
        """Notes that training starts now, and returns the number of its first step. For the chief to do."""
        raise NotImplementedError

    def open_checkpoint(self) -> TrainingCheckpoint | None:
        """What the run goes on from; None when it begins with step 0. Who holds it keeps its files open, and their place on the disk
        is not freed."""

    def save(self, model: ModelContent, tensors: Mapping[str, Tensor], state: TrainingState) -> Checkpoint | None:
        """Writes a checkpoint. Whatever goes wrong, the older ones stay. None where none is kept."""

    def finish(self, ending: str, *, is_early: bool = False) -> None:
        """Notes that the run has come to its end, and why; `is_early` where nothing got better. The last checkpoint must have been
        saved."""


class RunFolder(TrainerFolder):
    """The folder that keeps a run. Made by `open_run` and `open_codec`."""

    is_chief = True

    def __init__(self, path: Path, stage: str, command: Sequence[str], config: XTTSConfig):
        super().__init__(path, stage, command, is_resumed=False)
        training = config.training
        self.store = CheckpointStore(
            path, keep_last=training.keep_last, keep_best=training.keep_best, best_metric=training.best_metric
        )
        self._config = config
        self._is_codec_of_run = stage != training.stage
        self._sections: dict[str, dict[str, Any]] = dump_sections(config)
        self._sections["training"]["stage"] = stage
        self.record = read_record(path) or self._start_record()
        """What `run.json` says."""
        self._changes = compare_configs(self.record.config, self._sections)
        if self._is_codec_of_run:
            self._changes = restrict_to_codec(self._changes, is_trained=self.record.ending is not None)
        self.checkpoint: Checkpoint | None = self.store.latest()
        """The newest whole checkpoint, from which the run goes on; None when it begins with step 0."""
        self.is_resumed = self.checkpoint is not None
        refuse_changes(self._changes, path, has_checkpoint=self.is_resumed)

    @property
    def step(self) -> int:
        """Updates that are done and saved."""
        return self.checkpoint.step if self.checkpoint is not None else 0

    @property
    def is_finished(self) -> bool:
        """Whether the run that was found in the folder has come to its end, and no other length is asked for now."""
        if self._is_codec_of_run and self.step >= self._config.training.codec_steps:
            # Killed just before it could say so, it is as trained as any.
            return True
        if self.record.ending is None or not self.is_resumed:
            return False
        if self._is_codec_of_run and CheckpointReader(self.path.parent).latest() is not None:
            # A GPT has learnt its codes: trained on, it would be another codec.
            return True
        if self.record.is_early:
            patience = self._config.training.early_stopping
            return 0 < patience <= self._old_patience
        return all(change.rule is not Rule.LENGTH for change in self._changes)

    def open_checkpoint(self) -> TrainingCheckpoint | None:
        if self.checkpoint is None:
            return None
        # Summed up already, when it was found.
        return read_training_checkpoint(self.checkpoint.path, verify_checksums=False)

    def require_codec(self, codec: Codec) -> None:
        saved = self.open_checkpoint()
        if saved is not None and take_codec(saved.model).digest != codec.digest:
            raise StartingPointError(
                f"The codec in {codec.folder} is not the one this run has learnt the codes of, so the run cannot go on with it. "
                f"Give that one with --codec (a copy of {saved.model.path} holds it), or start anew with --reset-training."
            )

    def begin(self, end_step: int, environment: Mapping[str, Any]) -> int:
        """Says in the log what has changed since the run was started. Raises `RunFinishedError` when the run has come to its end;
        one that had done all its updates but was killed before it could note that may end now.
        """
        is_done = self.step >= end_step if self.record.ending is not None else self.step > end_step
        if self.is_finished or is_done:
            raise self.explain_finished()
        if self.step == end_step:
            _log.info(
                "All %d updates of the run in %s were done before it was ended: only its end is left.",
                end_step,
                self.path,
            )
        elif self.is_resumed:
            report_rounding([*self._changes, *compare_environments(self.record.environment, environment)])
            if self.record.end_step not in (None, end_step):
                report_moved_end(self._config.training, self.step, self.record.end_step, end_step)
            _log.info("The run in %s goes on at step %d of %d.", self.path, self.step, end_step)
        start = Start(datetime.now().isoformat(timespec="seconds"), self.step, self._command, end_step, _find_cwd())
        self._note(
            config=self._sections,
            environment=dict(environment),
            starts=(*self.record.starts, start),
            end_step=end_step,
            ending=None,
            is_early=False,
        )
        return self.step

    def note_choice(self, choice: Mapping[str, Any] | None) -> None:
        if choice != self.record.choice:
            self._note(choice=choice)

    def save(self, model: ModelContent, tensors: Mapping[str, Tensor], state: TrainingState) -> Checkpoint:
        self.checkpoint = self.store.save(model=model, tensors=tensors, state=state)
        return self.checkpoint

    def rewind_to(self, path: Path) -> None:
        """Goes on from an older checkpoint of the folder. Newer ones, of what is then another history, are set aside."""
        listed = self.store.list()
        found = next((each for each in listed if each.path.resolve() == path.resolve()), None)
        whole = self.store.find(found.step) if found is not None else None
        if whole is None:
            names = ", ".join(checkpoint.path.name for checkpoint in listed) or "none"
            raise RunFolderError(f"{path}: is no whole checkpoint of the run in {self.path}, which has: {names}.")
        if whole.step < self.step:
            # First: killed in between, the run must not pass for finished.
            self._note(ending=None, is_early=False)
        self.store.rewind(whole.step)
        self.checkpoint = whole

    def finish(self, ending: str, *, is_early: bool = False) -> None:
        assert self.record.end_step is not None, "begin() comes first"
        self._note(ending=ending, is_early=is_early)

    def list_lengths(self, end_step: int) -> list[tuple[int, int]]:
        """For every start of the run, this one last: updates that were done, and updates of the whole run as it was then."""
        return [*((start.step, start.end_step) for start in self.record.starts), (self.step, end_step)]

    def explain_finished(self) -> RunFinishedError:
        """The error that says that the run is finished, and how to train longer."""
        ending = f" ({self.record.ending})" if self.record.ending is not None else ""
        longer = f"To train longer, give {_describe_lengths(self._config)}: it goes on from there."
        if self.record.is_early:
            longer = (
                f"It was ended by --early-stopping {self._old_patience}, so a larger number of epochs or steps does not change "
                f"that. To train on, give a larger --early-stopping, or --early-stopping 0 to train to the end."
            )
        return RunFinishedError(
            f"The run in {self.path} is finished: {self.step} updates are done{ending}. {longer} To train anew, give "
            "--reset-training, which keeps this run aside, or another --checkpoint-dir.",
            self.path,
            self.step,
        )

    def open_codec(self) -> AbstractContextManager[RunFolder]:
        """The folder of the codec that this run trains first, opened in the same way.

        When it `is_finished`, its `checkpoint` holds the codec, and settings of its training may differ from those it had.
        """
        return _open_folder(self.path / CODEC_FOLDER, self._config, "codec", self._command)

    @property
    def _old_patience(self) -> int:
        return int(self.record.config["training"]["early_stopping"])

    def _note(self, **changes: Any) -> None:
        self.record = _write_record(self.path, dataclasses.replace(self.record, **changes))

    def _start_record(self) -> RunRecord:
        found = self.store.list()
        if found:
            raise RunFolderError(
                f"{self.path}: holds checkpoints ({found[-1].path.name}) but no {RECORD_NAME}, so it is not known how they came "
                "about. To start from one of them, give it with --init-from and another --checkpoint-dir; --reset-training "
                "keeps them aside and starts anew here."
            )
        return _write_record(self.path, RunRecord(self.stage, self._sections, foreign=tuple(_list_names(self.path))))


def _find_cwd() -> str:
    """Nothing where that folder was removed: no reason to end a run."""
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return ""


def _describe_lengths(config: XTTSConfig) -> str:
    """The settings that make a run longer, as words on the command line."""
    training = config.training
    is_measured_in_epochs = training.stage != "codec" or "epochs" in config.given_values().get("training", {})
    lengths = [f"a larger --epochs (now {training.epochs})"] if is_measured_in_epochs else []
    if training.max_steps is not None:
        lengths.append(f"a larger --max-steps (now {training.max_steps})")
    if not lengths:
        lengths.append(f"a larger --codec-steps (now {training.codec_steps})")
    return " or ".join(lengths)


LOCK_NAME = "run.lock"
_NO_LOCKS_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextlib.contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other trainers out of it for the block. Raises `RunFolderError` where one is in it.

    The kernel frees the lock when the process ends, however it ends; the file that stays behind means nothing.
    """
    # Whichever thread closes the folder. Without a file that stands for a lock: that of a killed process would stay.
    lock = FileLock(
        folder / LOCK_NAME, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=_write_holder
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        holder = ""
        with contextlib.suppress(FileError):
            holder = read_text(folder / LOCK_NAME, 500)
        raise RunFolderError(
            f"{folder}: {holder or 'another process'} trains in this folder. Wait for it or stop it, or give another --checkpoint-dir."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_ERRORS:
            raise RunFolderError(
                f"{folder}: cannot be used as the run's folder ({error.strerror}). Give another one with --checkpoint-dir."
            ) from error
        _log.warning(
            "%s: this file system knows no locks (%s), so nothing keeps a second trainer out. Start only one.",
            folder,
            error.strerror,
        )
    try:
        yield
    finally:
        lock.release()


def _write_holder(descriptor: int) -> None:
    holder = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S},"
    # For the message of those who come second; the lock does not depend on it, so a full disk is no matter.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


_KEPT = re.compile(r"previous-run-(\d+)")
_MOVING = re.compile(r"\.(previous-run-\d+)\.moving")
"""A run that is on its way to be kept under that name."""
_CHECKPOINTS = re.compile(r"(damaged-|newer-)?step-\d+(-\d+)?|checkpoints\.json|run\.json")


def keep_run_aside(folder: Path) -> None:
    """Moves the run in a folder aside, where there is one.

    What was in the folder before the run stays, as do older runs. Without a readable `run.json` nobody knows what else is
    the run's, and only checkpoints are moved.
    """
    # Stopped before it trained anything, as when its data were not found, it is nothing to keep.
    if not _list_entries(folder) or ((folder / RECORD_NAME).is_file() and not _has_begun(folder)):
        return
    numbers = [int(match[1]) for match in map(_KEPT.fullmatch, os.listdir(folder)) if match]
    try:
        (folder / f".previous-run-{max(numbers, default=0) + 1}.moving").mkdir()
        complete_interrupted_move(folder)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: the old run cannot be kept aside ({error}). Move it away yourself, or give another --checkpoint-dir."
        ) from error


def complete_interrupted_move(folder: Path) -> None:
    """Completes what `keep_run_aside` began, here or in a process that was killed."""
    for moving in filter(None, map(_MOVING.fullmatch, os.listdir(folder))):
        for name in _list_entries(folder):
            (folder / name).rename(folder / moving[0] / name)
        kept = (folder / moving[0]).rename(folder / moving[1])
        _log.info("The run that was in %s is kept in %s.", folder, kept)


def _list_entries(folder: Path) -> list[str]:
    """The names of what is the run's in a folder, `run.json` last."""
    try:
        record = read_record(folder)
    except RunFolderError:
        record = None
    names = _list_names(folder)
    if record is None:
        found = [name for name in names if _CHECKPOINTS.fullmatch(name) or (folder / name / RECORD_NAME).is_file()]
    else:
        found = [name for name in names if name not in record.foreign]
    return sorted(found, key=lambda name: (name == RECORD_NAME, name))


def _list_names(folder: Path) -> list[str]:
    """What is in a folder besides older runs, and the lock, which is no run's own: whoever moves the others holds it."""
    names = sorted(os.listdir(folder))
    return [name for name in names if name != LOCK_NAME and not (_KEPT.fullmatch(name) or _MOVING.fullmatch(name))]
