"""The frozen codec of a run, from its model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from myxtts.checkpoints import ModelFileError, read_array, read_model_directory
from myxtts.checkpoints.model_directory import require_weights
from myxtts.models.build import build_dvae
from myxtts.models.dvae import DVAE
from myxtts.models.names import load_checkpoint_arrays


class Codec(NamedTuple):
    """A frozen DVAE."""

    dvae: DVAE
    weights: dict[str, NDArray[Any]]
    """By their names in a checkpoint."""


def load_codec(folder: Path) -> Codec:
    """The codec of a model directory, built on the device of the caller's scope."""
    directory = read_model_directory(folder, verify_checksums=False)
    if directory.dvae is None:
        raise ModelFileError(folder, "holds no codec (dvae.safetensors). Give a folder that has one by --codec.")
    require_weights(directory)
    arrays = {name: read_array(tensor) for name, tensor in directory.dvae.items()}
    dvae = build_dvae(directory.config.model, seed=None)
    load_checkpoint_arrays(dvae, arrays).require_complete()
    return Codec(dvae, arrays)
