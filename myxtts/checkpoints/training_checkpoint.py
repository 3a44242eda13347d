"""A training checkpoint: a model directory that holds, beside the model, all that the run needs to go on exactly.

training.json         step, metrics, position in the data, configuration, facts of the environment
training.safetensors  optimizer slots, averages, loss scale and whatever else the step keeps

It is a model directory (`model_directory`) in every respect: exporting and synthesizing read it as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.checkpoints.errors import DamagedFileError, ModelFileError
from myxtts.checkpoints.model_directory import ModelContent, ModelDirectory, read_model_directory, write_model_directory
from myxtts.checkpoints.safetensors_file import open_safetensors, write_safetensors
from myxtts.checkpoints.sealed_directory import DirectoryWriter
from myxtts.checkpoints.tensor import LazyTensor, Tensor
from myxtts.files import FileError, fit_shape, read_json

STATE_NAME = "training.json"
TENSORS_NAME = "training.safetensors"
STATE_VERSION = 1


@dataclass(frozen=True)
class TrainingState:
    """Where a run is. Every value is one that JSON gives back as it was: no arrays, no NumPy numbers."""

    step: int
    """Updates that are done, which is the number of the next step."""
    metrics: Mapping[str, float]
    """Losses and such by name; those of `--best-metric` rank the checkpoint. NaN is allowed and never the best."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """The place in the data, as `data.resume.save_position` gives it."""
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


def write_training_checkpoint(
    target: str | os.PathLike[str], *, model: ModelContent, tensors: Mapping[str, Tensor], state: TrainingState
) -> None:
    """Puts a checkpoint at `target`, in place of what is there, verified by reading it back.

    Args:
        target: the directory.
        model: the arguments of `write_model_directory`. A codec's has no weights in `model` and all of them in `dvae`.
        tensors: the rest of the run's numbers, by name.
        state: everything that is no tensor.
    """
    metrics = {name: float(value) for name, value in state.metrics.items()}
    # Made before anything is written, and without a way to write what JSON does not know as text: it would come back as text.
    text = json.dumps({"version": STATE_VERSION, **asdict(state), "metrics": metrics}, indent=1, ensure_ascii=False)

    def write(files: DirectoryWriter) -> None:
        with files.create(TENSORS_NAME) as file:
            write_safetensors(file, tensors)
        files.write_text(STATE_NAME, text + "\n")

    write_model_directory(target, **model, write_more=write, facts={"step": state.step, "metrics": metrics})


def read_training_checkpoint(path: str | os.PathLike[str], *, verify_checksums: bool = True) -> TrainingCheckpoint:
    """The checkpoint in a directory. Raises `DamagedFileError` for one that is not whole.

    Args:
        path: the directory.
        verify_checksums: reads every byte once; not needed for one that `CheckpointStore.latest` has just given.
    """
    directory = Path(path)
    model = read_model_directory(directory, verify_checksums=verify_checksums)
    for name in (STATE_NAME, TENSORS_NAME):
        if name not in model.manifest.files:
            raise ModelFileError(
                directory,
                f"holds a model without {name}, so no run can go on from it. A new run can start from it: --init-from.",
            )
    return TrainingCheckpoint(model, open_safetensors(directory / TENSORS_NAME), _read_state(directory / STATE_NAME))


def count_checkpoint_bytes(model: ModelContent, tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the tensors of a checkpoint take on the disk; the texts beside them are small."""
    groups = [model["model"], model.get("dvae") or {}, tensors, *(model.get("speakers") or {}).values()]
    return sum(tensor.nbytes for group in groups for tensor in group.values())


def _read_state(path: Path) -> TrainingState:
    try:
        # A loss of a run that went wrong may be infinite.
        content = read_json(path, dict, allow_infinite=True)
        version = content.get("version")
        if version != STATE_VERSION:
            raise ModelFileError(
                path,
                f"has version {version}, but this MyXTTS reads version {STATE_VERSION}. Resume with the MyXTTS that wrote it.",
            )
        return fit_shape(content, TrainingState)
    except FileError as error:
        raise DamagedFileError(path, error.problem) from None
    except ModelFileError:
        # Ours, and a ValueError like the one below.
        raise
    except ValueError as error:
        raise DamagedFileError(path, f"is damaged ({error}).") from None
