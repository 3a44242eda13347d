"""The checkpoints of one run: saved whole or not at all, the last and the best kept, the damaged set aside.

step-00001000/       a training checkpoint (`training_checkpoint`), also a model directory
damaged-step-.../    one whose files are no longer what its manifest says
newer-step-.../      one that a run which went back to an earlier step left behind
checkpoints.json     what there is and why it is kept, for people and other programs; the directories alone decide

The folder may hold other things; nothing else in it is touched. One process saves at a time (`training.run_folder` has the
lock); others may read meanwhile.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from myxtts.checkpoints.atomic_directory import open_file_atomically, recover_folder, remove_directory_atomically
from myxtts.checkpoints.errors import CheckpointWriteError, DamagedFileError, DiskFullError, NoWholeCheckpointError
from myxtts.checkpoints.model_directory import FORMAT_VERSION, KIND, ModelContent
from myxtts.checkpoints.retention import Checkpoint, DiskNeed, choose_kept, rank_by_metric
from myxtts.checkpoints.sealed_directory import read_manifest
from myxtts.checkpoints.tensor import Tensor
from myxtts.checkpoints.training_checkpoint import (
    TrainingState,
    count_checkpoint_bytes,
    read_training_checkpoint,
    write_training_checkpoint,
)
from myxtts.files import FileError, read_json

_log = logging.getLogger(__name__)

INDEX_NAME = "checkpoints.json"
USUAL_METRIC = "val_loss"
_STEP_NAME = re.compile(r"step-(\d+)")
_DAMAGED = "damaged"
_NEWER = "newer"


class CheckpointReader:
    """The checkpoints in a folder that is somebody's: nothing in it is changed.

    Args:
        folder: where they are; need not be there.
        best_metric: what makes a checkpoint the best; as the run had it unless given.
    """

    def __init__(self, folder: Path, *, best_metric: str | None = None):
        self.folder = Path(folder)
        self._best_metric = read_best_metric(self.folder) if best_metric is None else best_metric
        self._damaged: set[Path] = set()

    def list(self) -> list[Checkpoint]:
        """The checkpoints by step, oldest first. Their content is not verified."""
        found = []
        for path in _list_directories(self.folder, _STEP_NAME):
            try:
                found.append(self._describe(path))
            except DamagedFileError as error:
                self._pass_over(path, error)
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, every byte verified; None where there has never been one.

        Damaged ones are passed over with a warning. Raises `NoWholeCheckpointError` when only such were there: to begin
        again from nothing, as if nothing had been trained, is for the user to decide.
        """
        found = self._find_whole(reversed(self.list()))
        damaged = [
            path.name for path in (*self._damaged, *_list_directories(self.folder, re.compile(rf"{_DAMAGED}-.+")))
        ]
        if found is None and damaged:
            raise NoWholeCheckpointError(
                f"{self.folder}: no checkpoint is whole; these are damaged: {', '.join(sorted(damaged))}. Copy one back from a "
                "backup under its old name (step-...), or start anew with --reset-training, which keeps all of this aside."
            )
        return found

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the lowest metric; None where no checkpoint has that metric."""
        return self._find_whole(rank_by_metric(self.list(), self._best_metric))

    def find(self, step: int) -> Checkpoint | None:
        """The whole checkpoint of a step; None where there is none."""
        return self._find_whole(checkpoint for checkpoint in self.list() if checkpoint.step == step)

    def _describe(self, path: Path) -> Checkpoint:
        manifest = read_manifest(path, KIND, FORMAT_VERSION)
        match = _STEP_NAME.fullmatch(path.name)
        assert match, path
        return Checkpoint(
            path=path,
            step=int(match[1]),
            metrics=manifest.facts.get("metrics", {}),
            size_bytes=sum(file.size_bytes for file in manifest.files.values()),
        )

    def _find_whole(self, candidates: Iterable[Checkpoint]) -> Checkpoint | None:
        for checkpoint in candidates:
            try:
                read_training_checkpoint(checkpoint.path)
            except DamagedFileError as error:
                self._pass_over(checkpoint.path, error)
            else:
                return checkpoint
        return None

    def _pass_over(self, path: Path, error: DamagedFileError) -> None:
        if not path.exists() or path in self._damaged:
            # Removed meanwhile by the process that trains, which is no damage; or told already.
            return
        place = self._set_damaged_aside(path)
        if path.exists():
            self._damaged.add(path)
        _log.warning("%s %s, and an older checkpoint is taken where there is one.", error, place)

    def _set_damaged_aside(self, path: Path) -> str:
        """Where a damaged checkpoint is now, as the beginning of a sentence."""
        return "It stays as it is"


class CheckpointStore(CheckpointReader):
    """The checkpoints in a folder of one's own: what was interrupted is recovered, and what is damaged set aside.

    Args:
        folder: where they are; made when the first one is saved.
        keep_last: newest checkpoints that are kept.
        keep_best: checkpoints with the lowest metric that are kept beside them.
        best_metric: name of that metric.
    """

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int, best_metric: str):
        assert keep_last >= 1, "the one just saved must stay"
        super().__init__(folder, best_metric=best_metric)
        self._keep_last = keep_last
        self._keep_best = keep_best

    def save(self, *, model: ModelContent, tensors: Mapping[str, Tensor], state: TrainingState) -> Checkpoint:
        """Saves a checkpoint, and only when it is whole on the disk removes those that are no longer kept.

        Raises `DiskFullError` when there is no room, and `CheckpointWriteError` when it cannot be written for another
        reason; what was there before is then as it was.
        """
        recover_folder(self.folder)
        path = self.folder / f"step-{state.step:08d}"
        try:
            write_training_checkpoint(path, model=model, tensors=tensors, state=state)
        except DiskFullError as error:
            raise self._explain_full_disk(error, state.step, count_checkpoint_bytes(model, tensors)) from error
        self._remove_unkept(state.step)
        self._write_index()
        return self._describe(path)

    def list(self) -> list[Checkpoint]:
        """The same, after what was interrupted is recovered."""
        recover_folder(self.folder)
        return super().list()

    def rewind(self, step: int) -> None:
        """Sets the checkpoints after a step aside, for a run that goes on from there: they are of another history."""
        for checkpoint in self.list():
            if checkpoint.step > step:
                aside = self._set_aside(checkpoint.path, _NEWER)
                _log.info("%s: set aside as %s; the run goes on from step %d.", checkpoint.path, aside.name, step)
        self._write_index()

    def estimate_disk(self, model: ModelContent, tensors: Mapping[str, Tensor]) -> DiskNeed:
        """Room that the checkpoints of a run with these tensors take."""
        folder = next(parent for parent in (self.folder, *self.folder.absolute().parents) if parent.exists())
        return DiskNeed(
            checkpoint_bytes=count_checkpoint_bytes(model, tensors),
            kept=self._keep_last + self._keep_best,
            present_bytes=sum(checkpoint.size_bytes for checkpoint in self.list()),
            free_bytes=shutil.disk_usage(folder).free,
        )

    def _set_damaged_aside(self, path: Path) -> str:
        try:
            return f"It is set aside as {self._set_aside(path, _DAMAGED)}"
        except OSError as refusal:
            return f"It cannot be set aside ({refusal.strerror})"

    def _set_aside(self, path: Path, why: str) -> Path:
        name = f"{why}-{path.name}"
        taken = {entry.name for entry in self.folder.iterdir()}
        number = 2
        while name in taken:
            name = f"{why}-{path.name}-{number}"
            number += 1
        return path.rename(path.with_name(name))

    def _remove_unkept(self, saved_step: int) -> None:
        checkpoints = self.list()
        kept = choose_kept(checkpoints, self._keep_last, self._keep_best, self._best_metric)
        for checkpoint in checkpoints:
            if checkpoint.step not in kept and checkpoint.step != saved_step:
                remove_directory_atomically(checkpoint.path)

    def _write_index(self) -> None:
        checkpoints = self.list()
        kept = choose_kept(checkpoints, self._keep_last, self._keep_best, self._best_metric)
        content = {
            "keep_last": self._keep_last,
            "keep_best": self._keep_best,
            "best_metric": self._best_metric,
            "checkpoints": [
                {
                    "step": checkpoint.step,
                    "directory": checkpoint.path.name,
                    "kept_as": kept.get(checkpoint.step, ()),
                    "metrics": checkpoint.metrics,
                    "bytes": checkpoint.size_bytes,
                }
                for checkpoint in checkpoints
            ],
        }
        try:
            with open_file_atomically(self.folder / INDEX_NAME) as file:
                file.write(json.dumps(content, indent=2).encode() + b"\n")
        except CheckpointWriteError as error:
            # The checkpoint itself is safe, and nothing that matters reads the index.
            _log.warning("The list of checkpoints is not up to date: %s", error)

    def _explain_full_disk(self, error: DiskFullError, step: int, needed_bytes: int) -> DiskFullError:
        present = self.list()
        older = f"The run can go on from step {present[-1].step}" if present else "There is no older checkpoint"
        return DiskFullError(
            f"{self.folder}: no room for the checkpoint of step {step}, which needs {needed_bytes} bytes "
            f"({_format_mib(needed_bytes)}); {_format_mib(error.free_bytes)} are free. Free that much there, or keep fewer "
            f"(--keep-last, --keep-best: {len(present)} checkpoints now take "
            f"{_format_mib(sum(checkpoint.size_bytes for checkpoint in present))}), or move the folder to a larger disk and name "
            f"it with --checkpoint-dir. Nothing that was there is lost. {older}.",
            self.folder,
            error.free_bytes,
        )


def _list_directories(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if pattern.fullmatch(entry.name) and entry.is_dir()]


def _format_mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def read_best_metric(folder: Path) -> str:
    """What makes a checkpoint of a folder the best one, as the run that wrote them had it."""
    try:
        metric = read_json(folder / INDEX_NAME, dict, allow_infinite=True).get("best_metric")
    except FileError:
        # Nothing that matters depends on it: of a list that was never written the usual metric is the best guess.
        return USUAL_METRIC
    return metric if isinstance(metric, str) else USUAL_METRIC
