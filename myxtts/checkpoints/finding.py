"""Which model is meant by a folder: a model directory itself, or the best checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

from myxtts.checkpoints.checkpoint_store import CheckpointStore
from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.sealed_directory import MANIFEST_NAME


def find_model_directory(path: Path) -> Path:
    """The model directory at a path; of a run's folder the best checkpoint, or the newest where none was validated."""
    if not path.is_dir():
        raise ModelFileError(path, "does not exist. Give a model directory, or the --checkpoint-dir of a run.")
    if (path / MANIFEST_NAME).exists():
        return path
    store = CheckpointStore(path, keep_last=1, keep_best=1, best_metric="val_loss")
    found = store.best() or store.latest()
    if found is None:
        raise ModelFileError(
            path,
            f"is no model directory (it has no {MANIFEST_NAME}) and holds no checkpoints. Make one with `myxtts import`, or "
            "give the --checkpoint-dir of a run.",
        )
    return found.path
