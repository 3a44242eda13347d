"""The checkpoints of one run: saved whole or not at all, the last and the best kept, the damaged set aside.

step-00001000/       a training checkpoint: a model directory, and all that the run needs to go on exactly
damaged-step-.../    one whose files are no longer what its manifest says
newer-step-.../      one that a run which went back to an earlier step left behind
checkpoints.json     what there is and why it is kept, for people and other programs; the directories alone decide
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.checkpoints.model_directory import (
    MANIFEST_NAME,
    MODEL_NAME,
    ModelContent,
    ModelDirectory,
    Part,
    finds_damage,
    read_manifest,
    read_model_directory,
    write_model_directory,
)
from myxtts.checkpoints.tensors import LazyTensor, Tensor, open_safetensors
from myxtts.config.presets import BASE_VOICE
from myxtts.errors import CheckpointError, DamagedFileError, ModelFileError
from myxtts.files import (
    DiskFullError,
    FileError,
    PathLike,
    WriteError,
    open_file_atomically,
    read_json,
    recover_folder,
    remove_folder_atomically,
)
from myxtts.units import format_bytes

_log = logging.getLogger(__name__)


STATE_NAME = "training.json"
TENSORS_NAME = "training.safetensors"
STATE_VERSION = 1
INDEX_NAME = "checkpoints.json"
USUAL_METRIC = "val_loss"
_STEP_NAME = re.compile(r"step-\d+")


@dataclass(frozen=True)
class TrainingState:
    """Where a run is. Every value is one that JSON gives back as it was: no arrays, no NumPy numbers."""

    step: int
    """Updates that are done, which is the number of the next step."""
    metrics: Mapping[str, float]
    """Losses and such by name; those of `--best-metric` rank the checkpoint. NaN is allowed and never the best."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """The place in the data, as `data.run_data.save_position` gives it."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings in force, by section."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What else bits depend on: versions, threads, determinism, kind of device."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the trainer keeps between steps, such as the counters of early stopping."""


class TrainingCheckpoint(NamedTuple):
    """A checkpoint as it lies on the disk; its tensors are read when they are asked for."""

    model: ModelDirectory
    tensors: Mapping[str, LazyTensor]
    state: TrainingState


def read_training_checkpoint(path: PathLike, *, verify_checksums: bool = True) -> TrainingCheckpoint:
    """The checkpoint in a directory. Raises `DamagedFileError` for one that is not whole.

    Checksums need not be verified for one that `CheckpointStore.latest` has just given.
    """
    directory = Path(path)
    model = read_model_directory(directory, verify_checksums=verify_checksums)
    for name in (STATE_NAME, TENSORS_NAME):
        if name not in model.manifest.files:
            raise ModelFileError(
                directory,
                f"holds a model without {name}, so no run can go on from it. A new run can start from it: --init-from.",
            )
    with finds_damage():
        # A loss of a run that went wrong may be infinite.
        version = read_json(directory / STATE_NAME, dict, allow_infinite=True).get("version")
        if version != STATE_VERSION:
            raise ModelFileError(
                directory / STATE_NAME,
                f"has version {version}, but this MyXTTS reads version {STATE_VERSION}. Resume with the MyXTTS that wrote it.",
            )
        state = read_json(directory / STATE_NAME, TrainingState, allow_infinite=True)
    return TrainingCheckpoint(model, open_safetensors(directory / TENSORS_NAME), state)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a store, as its manifest describes it."""

    path: Path
    step: int
    metrics: Mapping[str, float]
    size_bytes: int


def _rank(checkpoints: Iterable[Checkpoint], metric: str) -> list[Checkpoint]:
    """Those that have the metric, lowest first; of equals the earlier. A loss that is not a number is no rank."""
    ranked = [checkpoint for checkpoint in checkpoints if math.isfinite(checkpoint.metrics.get(metric, math.nan))]
    return sorted(ranked, key=lambda checkpoint: (checkpoint.metrics[metric], checkpoint.step))


class CheckpointReader:
    """The checkpoints in a folder that is somebody's: nothing in it is changed. The folder need not be there."""

    _is_own = False

    def __init__(self, folder: Path, *, best_metric: str | None = None):
        self.folder = Path(folder)
        self._best_metric = _read_best_metric(self.folder) if best_metric is None else best_metric
        self._damaged: set[Path] = set()

    def list(self) -> list[Checkpoint]:
        """The checkpoints by step, oldest first. Their content is not verified."""
        if self._is_own:
            recover_folder(self.folder)
        found = []
        for path in _list_directories(self.folder, _STEP_NAME):
            try:
                found.append(_describe(path))
            except DamagedFileError as error:
                self._pass_over(path, error)
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, every byte verified; None where there has never been one.

        Damaged ones are passed over with a warning. Raises `CheckpointError` when only such were there: to begin
        again from nothing, as if nothing had been trained, is for the user to decide.
        """
        found = self._find_whole(reversed(self.list()))
        damaged = [path.name for path in (*self._damaged, *_list_directories(self.folder, re.compile("damaged-.+")))]
        if found is None and damaged:
            raise CheckpointError(
                f"{self.folder}: no checkpoint is whole; these are damaged: {', '.join(sorted(damaged))}. Copy one back from a "
                "backup under its old name (step-...), or start anew with --reset-training, which keeps all of this aside."
            )
        return found

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the lowest metric; None where no checkpoint has that metric."""
        return self._find_whole(_rank(self.list(), self._best_metric))

    def find(self, step: int) -> Checkpoint | None:
        """The whole checkpoint of a step; None where there is none."""
        return self._find_whole(checkpoint for checkpoint in self.list() if checkpoint.step == step)

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
        place = "It stays as it is"
        if self._is_own:
            try:
                place = f"It is set aside as {_set_aside(path, 'damaged')}"
            except OSError as refusal:
                place = f"It cannot be set aside ({refusal.strerror})"
        if path.exists():
            self._damaged.add(path)
        _log.warning("%s %s, and an older checkpoint is taken where there is one.", error, place)


class CheckpointStore(CheckpointReader):
    """The checkpoints in a folder of one's own: what was interrupted is recovered, and what is damaged set aside.

    The folder is made when the first one is saved.
    """

    _is_own = True

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int, best_metric: str):
        assert keep_last >= 1, "the one just saved must stay"
        super().__init__(folder, best_metric=best_metric)
        self._keep_last = keep_last
        self._keep_best = keep_best

    def save(self, *, model: ModelContent, tensors: Mapping[str, Tensor], state: TrainingState) -> Checkpoint:
        """Saves a checkpoint, and only when it is whole on the disk removes those that are no longer kept.

        Raises `DiskFullError` when there is no room, and `WriteError` when it cannot be written for another
        reason; what was there before is then as it was.
        """
        recover_folder(self.folder)
        path = self.folder / f"step-{state.step:08d}"
        metrics = {name: float(value) for name, value in state.metrics.items()}
        # Made before anything is written, and without a way to write what JSON does not know as text: it would come back as text.
        text = json.dumps({"version": STATE_VERSION, **asdict(state), "metrics": metrics}, indent=1, ensure_ascii=False)
        more: dict[str, Part] = {TENSORS_NAME: tensors, STATE_NAME: text + "\n"}
        try:
            write_model_directory(path, **model, more=more, step=state.step, metrics=metrics)
        except DiskFullError as error:
            raise self._explain_full_disk(error, state.step, _count_bytes(model, tensors)) from error
        for checkpoint, kept_as in self._choose_kept():
            if not kept_as and checkpoint.step != state.step:
                remove_folder_atomically(checkpoint.path)
        self._write_index()
        return _describe(path)

    def rewind(self, step: int) -> None:
        """Sets the checkpoints after a step aside, for a run that goes on from there: they are of another history."""
        for checkpoint in self.list():
            if checkpoint.step > step:
                aside = _set_aside(checkpoint.path, "newer")
                _log.info("%s: set aside as %s; the run goes on from step %d.", checkpoint.path, aside.name, step)
        self._write_index()

    def describe_disk(self, model: ModelContent, tensors: Mapping[str, Tensor]) -> str:
        """What room the checkpoints of a run with these tensors take at most, and whether the disk has it."""
        folder = next(parent for parent in (self.folder, *self.folder.absolute().parents) if parent.exists())
        free_bytes, each_bytes = shutil.disk_usage(folder).free, _count_bytes(model, tensors)
        kept = self._keep_last + self._keep_best
        # One more while the next is written: none goes before its successor is whole.
        peak_bytes = (kept + 1) * each_bytes
        present_bytes = sum(checkpoint.size_bytes for checkpoint in self.list())
        room = f"{peak_bytes / 1e6:.0f} MB in {self.folder} ({kept} kept, {each_bytes / 1e6:.0f} MB each)"
        too_little = " That is too little: a save will fail." if peak_bytes - present_bytes > free_bytes else ""
        start_bytes = sum(file.stat().st_size for file in (self.folder / START_FOLDER).glob("*"))
        beside = f" The model it starts from lies beside them: {start_bytes / 1e6:.0f} MB." if start_bytes else ""
        return f"Checkpoints need {room}; {free_bytes / 1e9:.1f} GB are free.{too_little}{beside}"

    def _choose_kept(self) -> list[tuple[Checkpoint, list[str]]]:
        """Every checkpoint with why it is kept: as one of the last, of the best, or both; or for nothing."""
        checkpoints = self.list()
        groups = {
            "last": checkpoints[-self._keep_last :],
            "best": _rank(checkpoints, self._best_metric)[: self._keep_best],
        }
        return [(each, [why for why, group in groups.items() if each in group]) for each in checkpoints]

    def _write_index(self) -> None:
        content = {
            "keep_last": self._keep_last,
            "keep_best": self._keep_best,
            "best_metric": self._best_metric,
            "checkpoints": [
                {
                    "step": checkpoint.step,
                    "directory": checkpoint.path.name,
                    "kept_as": kept_as,
                    "metrics": checkpoint.metrics,
                    "bytes": checkpoint.size_bytes,
                }
                for checkpoint, kept_as in self._choose_kept()
            ],
        }
        try:
            with open_file_atomically(self.folder / INDEX_NAME) as file:
                file.write(json.dumps(content, indent=2).encode() + b"\n")
        except WriteError as error:
            # The checkpoint itself is safe, and nothing that matters reads the index.
            _log.warning("The list of checkpoints is not up to date: %s", error)

    def _explain_full_disk(self, error: DiskFullError, step: int, needed_bytes: int) -> DiskFullError:
        present = self.list()
        older = f"The run can go on from step {present[-1].step}" if present else "There is no older checkpoint"
        return DiskFullError(
            self.folder,
            f"no room for the checkpoint of step {step}, which needs {needed_bytes} bytes "
            f"({format_bytes(needed_bytes)}); {format_bytes(error.free_bytes)} are free. Free that much there, or keep fewer "
            f"(--keep-last, --keep-best: {len(present)} checkpoints now take "
            f"{format_bytes(sum(checkpoint.size_bytes for checkpoint in present))}), or move the folder to a larger disk and name "
            f"it with --checkpoint-dir. Nothing that was there is lost. {older}.",
            error.free_bytes,
        )


def _set_aside(path: Path, why: str) -> Path:
    name = f"{why}-{path.name}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return path.rename(next(place for each in names if not os.path.lexists(place := path.with_name(each))))


def _list_directories(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if pattern.fullmatch(entry.name) and entry.is_dir()]


def _read_best_metric(folder: Path) -> str:
    try:
        metric = read_json(folder / INDEX_NAME, dict, allow_infinite=True).get("best_metric")
    except FileError:
        # Nothing that matters depends on it: of a list that was never written the usual metric is the best guess.
        return USUAL_METRIC
    return metric if isinstance(metric, str) else USUAL_METRIC


def _describe(path: Path) -> Checkpoint:
    manifest = read_manifest(path)
    size_bytes = sum(file.bytes for file in manifest.files.values())
    return Checkpoint(path, int(path.name.removeprefix("step-")), manifest.facts.metrics, size_bytes)


def _count_bytes(model: ModelContent, tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the tensors of a checkpoint take on the disk; the texts beside them are small."""
    groups = [model["model"], model.get("dvae") or {}, tensors, *(model.get("speakers") or {}).values()]
    return sum(tensor.nbytes for group in groups for tensor in group.values())


DECODER_FOLDER = "decoder"
START_FOLDER = "start"


BASE_FOLDER = Path(__file__).parents[1] / "base_voice"
"""The model that comes with the package."""


def find_model_directory(path: Path) -> Path:
    """The model directory at a path, or of the name `base`; of a run's folder the best checkpoint, or the newest where none was
    validated, with the decoder that was trained for that checkpoint, where there is one."""
    own = find_own_model(path)
    decoder = path / DECODER_FOLDER
    start = decoder / START_FOLDER
    if own == path or not (start / MANIFEST_NAME).exists() or not have_same_weights(start, own):
        return own
    return _find_checkpoint(decoder) or own


def have_same_weights(left: Path, right: Path) -> bool:
    """Whether two model directories hold the same weights, the DVAE's left out, as their manifests have it."""
    manifests = [read_manifest(path) for path in (left, right)]
    return len({manifest.facts.merged_from or manifest.files[MODEL_NAME].sha256 for manifest in manifests}) == 1


def find_own_model(path: Path) -> Path:
    """The same, but of a run's folder always one of its own checkpoints."""
    require_model(path)
    if path == Path(BASE_VOICE):
        return BASE_FOLDER
    if (path / MANIFEST_NAME).exists():
        return path
    if found := _find_checkpoint(path):
        return found
    raise _explain_no_model(path)


def require_model(path: Path) -> None:
    """Raises `ModelFileError` for a path that cannot mean a model. Nothing is read for it, so what is there may be damaged."""
    if path == Path(BASE_VOICE):
        if path.exists():
            raise ModelFileError(
                path,
                "is the name of the voice that comes with MyXTTS, but there is a folder of that name here too. Give the whole path of "
                f"what is meant; the voice is {BASE_FOLDER}.",
            )
        return
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise ModelFileError(path, f"{what}. Give a model directory, or the --checkpoint-dir of a run.")
    if not (path / MANIFEST_NAME).exists() and not any(path.glob("*step-*")):
        raise _explain_no_model(path)


def _explain_no_model(path: Path) -> ModelFileError:
    return ModelFileError(
        path,
        f"is no model directory (it has no {MANIFEST_NAME}) and holds no checkpoints. Make one with `myxtts import`, or "
        "give the --checkpoint-dir of a run.",
    )


def _find_checkpoint(folder: Path) -> Path | None:
    checkpoints = CheckpointReader(folder)
    found = checkpoints.best() or checkpoints.latest()
    return None if found is None else found.path
