"""Model files: reading Coqui's without torch and without executing them, and MyXTTS' own. Never imports TensorFlow."""

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensor import read_array

__all__ = ["ModelFileError", "read_array", "read_model_directory", "write_model_directory"]
