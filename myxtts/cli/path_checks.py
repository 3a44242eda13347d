"""What is wrong with the paths of a run, said before TensorFlow is loaded and a corpus is read, which take their time."""

from __future__ import annotations

from pathlib import Path

from myxtts.config import XTTSConfig


def check_corpora(config: XTTSConfig) -> None:
    """Raises `MetadataError` for a corpus that is not there."""
    from myxtts.data.ljspeech import find_metadata

    if config.data.train_data:
        find_metadata(Path(config.data.train_data))
    if config.data.val_data:
        find_metadata(Path(config.data.val_data), "eval")


def check_models(config: XTTSConfig) -> None:
    """Raises `ModelFileError` for a model to start from, or a codec, that is not there."""
    from myxtts.checkpoints.finding import START_FOLDER, require_model
    from myxtts.training.run_folder import locate_run

    training = config.training
    if training.codec is not None:
        require_model(Path(training.codec))
    # A decoder's run keeps the model it was started with, which may be gone by now.
    folders = (locate_run(config), *Path(training.checkpoint_dir).glob("worker-*"))
    is_kept = training.stage == "decoder" and any((folder / START_FOLDER).is_dir() for folder in folders)
    if training.init_from is not None and not is_kept and not Path(training.init_from).is_file():
        require_model(Path(training.init_from))


def check_run_paths(config: XTTSConfig, *, opens_run: bool = True) -> None:
    """Raises for paths with which a run cannot start.

    Args:
        opens_run: whether this process keeps the folder of the run; of a cluster only the chief does.
    """
    from myxtts.training.run_folder import check_run_folder

    check_corpora(config)
    check_models(config)
    if opens_run:
        check_run_folder(config)
