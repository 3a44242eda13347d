"""Model files: reading Coqui's without torch and without executing them, and MyXTTS' own. Never imports TensorFlow."""

from myxtts.checkpoints.coqui import CoquiFile, CoquiKind, read_coqui_file
from myxtts.checkpoints.errors import (
    CheckpointError,
    DamagedFileError,
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
from myxtts.checkpoints.store import (
    Checkpoint,
    CheckpointStore,
    DiskNeed,
    TrainingCheckpoint,
    TrainingState,
    read_training_checkpoint,
    write_training_checkpoint,
)
from myxtts.checkpoints.tensor import LazyTensor, Tensor, read_array
from myxtts.checkpoints.torch_file import read_torch_file

__all__ = [
    "XTTS_WEIGHTS_NOTICE",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CoquiFile",
    "CoquiKind",
    "DamagedFileError",
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
    "read_array",
    "read_coqui_file",
    "read_model_directory",
    "read_torch_file",
    "read_training_checkpoint",
    "write_model_directory",
    "write_training_checkpoint",
]
