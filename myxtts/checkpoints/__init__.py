"""Model files: reading Coqui's without torch and without executing them, and MyXTTS' own. Never imports TensorFlow."""

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensors import read_array
from myxtts.errors import ModelFileError

__all__ = ["ModelFileError", "read_array", "read_model_directory", "write_model_directory"]
