"""Which model is meant by a folder: a model directory itself, or the best checkpoint of a run.

A decoder that was trained in the folder of a GPT's run has a run of its own in `decoder/`, with a copy of the model it was
trained for in `decoder/start`. Its checkpoints hold that GPT and the decoder, so they are what the folder means, as long as
the GPT is still the same.
"""

from __future__ import annotations

from pathlib import Path

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.model_directory import MANIFEST_NAME, MODEL_NAME, ModelDirectory, read_manifest
from myxtts.checkpoints.safetensors_file import open_safetensors
from myxtts.checkpoints.store import CheckpointReader
from myxtts.models.weights import DECODER_PREFIX

DECODER_FOLDER = "decoder"
START_FOLDER = "start"


def find_model_directory(path: Path) -> Path:
    """The model directory at a path; of a run's folder the best checkpoint, or the newest where none was validated.

    With the decoder that was trained for that checkpoint, where there is one.
    """
    own = find_own_model(path)
    decoder = path / DECODER_FOLDER
    start = decoder / START_FOLDER
    if own == path or not (start / MANIFEST_NAME).exists() or not have_same_weights(start, own):
        return own
    found = _find_checkpoint(decoder)
    return own if found is None else found


def have_same_weights(left: Path, right: Path) -> bool:
    """Whether two model directories hold the same weights, the DVAE's left out, as their manifests have it."""
    sums = [read_manifest(path).files[MODEL_NAME].sha256 for path in (left, right)]
    return sums[0] == sums[1]


def find_own_model(path: Path) -> Path:
    """The same, but of a run's folder always one of its own checkpoints."""
    require_model(path)
    if (path / MANIFEST_NAME).exists():
        return path
    found = _find_checkpoint(path)
    if found is None:
        raise _explain_no_model(path)
    return found


def require_model(path: Path) -> None:
    """Raises `ModelFileError` for a path that cannot mean a model. Nothing is read for it, so what is there may be damaged."""
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


def count_decoder_updates(directory: ModelDirectory) -> int | None:
    """Updates of the decoder in a checkpoint since it was new. None where it came with the model, or that is not known."""
    start = directory.path.parent / START_FOLDER / MODEL_NAME
    if directory.config.training.stage != "decoder" or not start.exists():
        return None
    is_new = not any(name.startswith(DECODER_PREFIX) for name in open_safetensors(start))
    return directory.manifest.facts.step if is_new else None


def _find_checkpoint(folder: Path) -> Path | None:
    checkpoints = CheckpointReader(folder)
    found = checkpoints.best() or checkpoints.latest()
    return None if found is None else found.path
