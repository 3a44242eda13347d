"""The folder of a run (`--checkpoint-dir`): which run is in it, whether it may go on, and from which checkpoint.

run.json          what the run is (`run_record`)
run.lock          one trainer at a time (`run_lock`)
step-.../         checkpoints (`checkpoints.store`)
codec/            a folder like this one, for the codec that a GPT run trains first
decoder/          another one, for the decoder that is trained for the GPT of this run
previous-run-1/   what --reset-training kept aside (`previous_runs`)

    with open_run(config, command=sys.argv) as run:       # refuses, or says what goes on
        first_step = run.begin(end_step, environment)     # when the data are known and training can start
        ...
        run.store.save(...)
        run.finish("all updates are done")
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from myxtts.checkpoints.finding import DECODER_FOLDER
from myxtts.checkpoints.store import Checkpoint, CheckpointReader, CheckpointStore
from myxtts.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.files import OutputFolderError, recover_folder, require_makeable_folder
from myxtts.training.errors import NoRunError, RunFinishedError, RunFolderError
from myxtts.training.previous_runs import complete_interrupted_move, keep_run_aside, list_foreign
from myxtts.training.resume_rules import (
    Comparison,
    Rule,
    compare_configs,
    compare_environments,
    refuse_changes,
    report_moved_end,
    report_rounding,
    restrict_to_codec,
)
from myxtts.training.run_lock import hold_run_folder
from myxtts.training.run_record import RECORD_NAME, RunRecord, Start, read_record, write_record

_log = logging.getLogger(__name__)

CODEC_FOLDER = "codec"


class RunFolder:
    """An open run folder; nobody else trains in it until it is closed. Made by `open_run` and `open_codec`."""

    def __init__(
        self,
        path: Path,
        *,
        config: XTTSConfig,
        stage: str,
        command: Sequence[str],
        lock: contextlib.ExitStack,
    ):
        self.path = path
        self.stage = stage
        self.store = CheckpointStore(
            path,
            keep_last=config.training.keep_last,
            keep_best=config.training.keep_best,
            best_metric=config.training.best_metric,
        )
        self._config = config
        self._command = tuple(command)
        self._record = self._read_or_start_record()
        self._comparison = self._compare()
        self.checkpoint: Checkpoint | None = self.store.latest()
        """The newest whole checkpoint, from which the run goes on; None when it begins with step 0."""
        refuse_changes(self._comparison, path, has_checkpoint=self.is_resumed)
        # Last: until here the caller still frees the lock when something is refused.
        self._lock = lock.pop_all()

    @property
    def step(self) -> int:
        """Updates that were done and saved when the folder was opened."""
        return self.checkpoint.step if self.checkpoint is not None else 0

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self.checkpoint is not None

    @property
    def is_finished(self) -> bool:
        """Whether the run that was found in the folder has come to its end, and no other length is asked for now."""
        if self._is_codec_of_run and self.step >= self._config.training.codec_steps:
            # Killed just before it could say so, it is as trained as any.
            return True
        if self._record.ending is None or not self.is_resumed:
            return False
        if self._is_codec_of_run and self._is_in_use:
            # A GPT has learnt its codes: trained on, it would be another codec.
            return True
        return not (self._has_more_patience if self._record.is_early else self._comparison.list_changes(Rule.LENGTH))

    @property
    def record(self) -> RunRecord:
        """What `run.json` says."""
        return self._record

    @property
    def resume_command(self) -> str:
        """The command that continues this run, for a shell."""
        return make_resume_command(self._command)

    def describe_progress(self) -> str | None:
        """How far the run in the folder is, in words; None where nothing was trained."""
        return describe_progress(self.path)

    def begin(self, end_step: int, environment: Mapping[str, Any]) -> int:
        """Notes that training starts now, and returns the number of its first step.

        Says in the log what has changed since the run was started. Raises `RunFinishedError` when the run has come to its
        end; one that had done all its updates but was killed before it could note that may end now.

        Args:
            end_step: updates of the whole run.
            environment: the facts that bits depend on, of kinds that JSON knows.
        """
        is_done = self.step >= end_step if self._record.ending is not None else self.step > end_step
        if self.is_finished or is_done:
            raise self.explain_finished()
        if self.step == end_step:
            _log.info(
                "All %d updates of the run in %s were done before it was ended: only its end is left.",
                end_step,
                self.path,
            )
        elif self.is_resumed:
            self._report_changes(end_step, environment)
            _log.info("The run in %s goes on at step %d of %d.", self.path, self.step, end_step)
        start = Start(datetime.now().isoformat(timespec="seconds"), self.step, self._command, end_step)
        self._write(
            dataclasses.replace(
                self._record,
                config=self._sections,
                environment=dict(environment),
                starts=(*self._record.starts, start),
                end_step=end_step,
                ending=None,
                is_early=False,
            )
        )
        return self.step

    def note_choice(self, choice: Mapping[str, Any] | None) -> None:
        """Keeps what `--mode auto` chose, for the next start of the run; None where the mode was given."""
        if choice != self._record.choice:
            self._write(dataclasses.replace(self._record, choice=choice))

    def rewind_to(self, path: Path) -> None:
        """Goes on from an older checkpoint of the folder. Newer ones, of what is then another history, are set aside."""
        found = next((found for found in self.store.list() if found.path.resolve() == Path(path).resolve()), None)
        whole = self.store.find(found.step) if found is not None else None
        if whole is None:
            names = ", ".join(checkpoint.path.name for checkpoint in self.store.list()) or "none"
            raise RunFolderError(f"{path}: is no whole checkpoint of the run in {self.path}, which has: {names}.")
        if whole.step < self.step:
            # First: killed in between, the run must not pass for finished.
            self._write(dataclasses.replace(self._record, ending=None, is_early=False))
        self.store.rewind(whole.step)
        self.checkpoint = whole

    def finish(self, ending: str, *, is_early: bool = False) -> None:
        """Notes that the run has come to its end, and why. The last checkpoint must have been saved.

        Args:
            is_early: whether it ended because nothing got better, and not because of its length.
        """
        assert self._record.end_step is not None, "begin() comes first"
        self._write(dataclasses.replace(self._record, ending=ending, is_early=is_early))

    def list_lengths(self, end_step: int) -> list[tuple[int, int]]:
        """For every start of the run, this one last: updates that were done, and updates of the whole run as it was then."""
        return [*((start.step, start.end_step) for start in self._record.starts), (self.step, end_step)]

    def explain_finished(self) -> RunFinishedError:
        """The error that says that the run is finished, and how to train longer."""
        ending = f" ({self._record.ending})" if self._record.ending is not None else ""
        longer = f"To train longer, give {_describe_lengths(self._config)}: it goes on from there."
        if self._record.is_early:
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

    def open_codec(self) -> RunFolder:
        """The folder of the codec that this run trains first, opened in the same way; closed by its own `close`.

        When it `is_finished`, its `checkpoint` holds the codec, and settings of its training may differ from those it had.
        """
        return _open_folder(self.path / CODEC_FOLDER, self._config, "codec", self._command)

    def close(self) -> None:
        """Lets others into the folder."""
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _report_changes(self, end_step: int, environment: Mapping[str, Any]) -> None:
        differing = compare_environments(self._record.environment, environment)
        report_rounding([*self._comparison.list_changes(Rule.ROUNDING), *differing])
        if self._record.end_step not in (None, end_step):
            report_moved_end(self._config.training, self.step, self._record.end_step, end_step)

    @property
    def _old_patience(self) -> int:
        return int(self._record.config["training"]["early_stopping"])

    @property
    def _has_more_patience(self) -> bool:
        patience = self._config.training.early_stopping
        return patience == 0 or patience > self._old_patience

    @property
    def _is_in_use(self) -> bool:
        """Whether a GPT was trained on this codec's codes in the folder it lies in."""
        return CheckpointReader(self.path.parent).latest() is not None

    @property
    def _is_codec_of_run(self) -> bool:
        return self.stage != self._config.training.stage

    @property
    def _sections(self) -> dict[str, dict[str, Any]]:
        sections = dump_sections(self._config)
        sections["training"]["stage"] = self.stage
        return sections

    def _write(self, record: RunRecord) -> None:
        write_record(self.path, record)
        self._record = record

    def _read_or_start_record(self) -> RunRecord:
        record = read_record(self.path)
        if record is not None:
            return record
        found = self.store.list()
        if found:
            raise RunFolderError(
                f"{self.path}: holds checkpoints ({found[-1].path.name}) but no {RECORD_NAME}, so it is not known how they came "
                "about. To start from one of them, give it with --init-from and another --checkpoint-dir; --reset-training "
                "keeps them aside and starts anew here."
            )
        record = RunRecord(stage=self.stage, config=self._sections, foreign=list_foreign(self.path))
        write_record(self.path, record)
        return record

    def _compare(self) -> Comparison:
        comparison = compare_configs(self._record.config, self._sections)
        if self._is_codec_of_run:
            return restrict_to_codec(comparison, is_trained=self._record.ending is not None)
        return comparison


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


def locate_run(config: XTTSConfig) -> Path:
    """The folder of the run, whether there is one or not. A decoder trained for the GPT in --checkpoint-dir has one inside that."""
    folder = Path(config.training.checkpoint_dir)
    is_inside = config.training.stage == "decoder" and config.training.init_from is None
    return folder / DECODER_FOLDER if is_inside else folder


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


def open_run(config: XTTSConfig, *, command: Sequence[str], checkpoint: Path | None = None) -> RunFolder:
    """The folder of the run these settings ask for: a new run, or the one in it, as `--resume` and the like say.

    Raises `RunInUseError` when another trains there, `NoRunError` when --resume finds none, `RunChangedError` when the
    settings would change the result of the run that is there, and `RunFinishedError` when nothing is left to do.

    Args:
        config: the settings as asked for, before anything is worked out from the data.
        command: the words that started this process, for the command that resumes it.
        checkpoint: of the folder, to go on from instead of its newest one, even if the run is finished.
    """
    # Before the folder is made: a mistyped one must not come into being.
    folder = check_run_folder(config)
    run = _open_folder(folder, config, config.training.stage, command, is_reset=config.training.resume == "reset")
    with contextlib.ExitStack() as stack:
        stack.callback(run.close)
        if checkpoint is not None:
            run.rewind_to(checkpoint)
        if run.is_finished:
            raise run.explain_finished()
        stack.pop_all()
    return run


def check_run_folder(config: XTTSConfig) -> Path:
    """The folder of the run, which is neither made nor opened. Raises what `open_run` does where no run can be in it."""
    folder = _choose_folder(config)
    if config.training.resume == "require":
        _require_begun(folder)
    try:
        require_makeable_folder(folder, "Give another one with --checkpoint-dir.")
    except OutputFolderError as error:
        raise RunFolderError(str(error)) from None
    return folder


def _require_begun(folder: Path) -> None:
    """Raises `NoRunError` unless something was trained in a folder, or was about to be: a start that failed earlier is no run."""
    records = [read_record(path) for path in (folder, folder / CODEC_FOLDER)]
    if any(record is not None and record.starts for record in records):
        return
    why = f"no {RECORD_NAME}" if records[0] is None else "the one in it ended before its first step"
    raise NoRunError(
        f"{folder}: there is no run to resume ({why}). Check --checkpoint-dir, or leave out --resume to start one."
    )


def _choose_folder(config: XTTSConfig) -> Path:
    """The folder of the run. Where it is inside that of a GPT, there must be one."""
    folder, given = locate_run(config), Path(config.training.checkpoint_dir)
    if folder != given and not (given / RECORD_NAME).is_file():
        raise NoRunError(
            f"--stage decoder trains the decoder of a GPT, but there is no run of one in {given}. Train a GPT there first, give "
            "the folder of one with --checkpoint-dir, or any model with --init-from."
        )
    return folder


def _open_folder(
    folder: Path, config: XTTSConfig, stage: str, command: Sequence[str], is_reset: bool = False
) -> RunFolder:
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_run_folder(folder))
        complete_interrupted_move(folder)
        recover_folder(folder, is_locked=True)
        if is_reset:
            keep_run_aside(folder)
        return RunFolder(folder, config=config, stage=stage, command=command, lock=stack)
