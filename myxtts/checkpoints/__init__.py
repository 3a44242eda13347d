"""Model files: reading Coqui's without torch and without executing them, and MyXTTS' own. Never imports TensorFlow."""

from myxtts.checkpoints.atomic_directory import write_directory_atomically
from myxtts.checkpoints.checkpoint_store import CheckpointStore
from myxtts.checkpoints.coqui import CoquiFile, CoquiKind, read_coqui_file
from myxtts.checkpoints.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedFileError,
    DiskFullError,
    KeyMismatchError,
    ModelFileError,
    NoWholeCheckpointError,
    UnsafeModelFileError,
)
from myxtts.checkpoints.key_report import KeyReport, compare_keys
from myxtts.checkpoints.licence import XTTS_WEIGHTS_NOTICE
from myxtts.checkpoints.model_directory import (
    ModelContent,
    ModelDirectory,
    read_model_directory,
    write_model_directory,
)
from myxtts.checkpoints.model_numbers import infer_model_numbers
from myxtts.checkpoints.retention import Checkpoint, DiskNeed
from myxtts.checkpoints.sealed_directory import DirectoryWriter, open_sealed_directory, write_sealed_directory
from myxtts.checkpoints.tensor import LazyTensor, Tensor, read_array
from myxtts.checkpoints.torch_file import read_torch_file
from myxtts.checkpoints.training_checkpoint import (
    TrainingCheckpoint,
    TrainingState,
    read_training_checkpoint,
    write_training_checkpoint,
)

__all__ = [
    "XTTS_WEIGHTS_NOTICE",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CheckpointWriteError",
    "CoquiFile",
    "CoquiKind",
    "DamagedFileError",
    "DirectoryWriter",
    "DiskFullError",
    "DiskNeed",
    "KeyMismatchError",
    "KeyReport",
    "LazyTensor",
    "ModelContent",
    "ModelDirectory",
    "ModelFileError",
    "NoWholeCheckpointError",
    "Tensor",
    "TrainingCheckpoint",
    "TrainingState",
    "UnsafeModelFileError",
    "compare_keys",
    "infer_model_numbers",
    "open_sealed_directory",
    "read_array",
    "read_coqui_file",
    "read_model_directory",
    "read_torch_file",
    "read_training_checkpoint",
    "write_directory_atomically",
    "write_model_directory",
    "write_sealed_directory",
    "write_training_checkpoint",
]
