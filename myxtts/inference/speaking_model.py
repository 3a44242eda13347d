"""Which model speaks, and whether it can: seen from its files, before a network is built. No TensorFlow."""

from __future__ import annotations

from pathlib import Path

from myxtts.checkpoints.finding import find_model_directory
from myxtts.checkpoints.model_directory import VOCABULARY_NAME, ModelDirectory, read_model_directory
from myxtts.inference.errors import UnableToSpeakError
from myxtts.models.weights import GPT_PREFIX


def find_speaking_model(path: Path) -> Path:
    """The model directory that a path means, as `find_model_directory` has it. Raises `UnableToSpeakError` where it cannot speak."""
    directory = read_model_directory(find_model_directory(path), verify_checksums=False)
    require_able_to_speak(directory)
    return directory.path


def require_able_to_speak(directory: ModelDirectory) -> None:
    """Raises `UnableToSpeakError` for a model that lacks what all speaking takes."""
    if not any(name.startswith(GPT_PREFIX) for name in directory.model):
        raise UnableToSpeakError(
            f"To speak, {directory.path} must have a GPT, but is a codec alone. Give the folder of the run that trained a GPT for it."
        )
    if directory.vocabulary is None:
        raise UnableToSpeakError(
            f"To speak, {directory.path} must have a vocabulary, but has no {VOCABULARY_NAME}. Import the model again with --vocab."
        )
