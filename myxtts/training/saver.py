"""What a run is saved as, and goes on from: model, optimizer, place in the data and progress, in one checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.checkpoints.store import Checkpoint, TrainingState
from myxtts.config import XTTSConfig
from myxtts.config.sources import dump_sections
from myxtts.data.run_data import RunData, load_failures, save_position
from myxtts.data.sampler import ReplacementJournal
from myxtts.devices.machine import ONEDNN
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import read_execution
from myxtts.training.model import TrainedModel
from myxtts.training.run_folder import TrainerFolder


@dataclass
class RunProgress:
    """How far a run is, beyond its weights."""

    step: int = 0
    """Updates done."""
    is_validated: bool = True
    """Whether the validation due after the last update, if one is, was finished."""
    best_loss: float | None = None
    """Of all validations."""
    rounds_without_better: int = 0
    skipped: int = 0
    """Updates left out because scaled gradients overflowed."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Becomes what was saved. In place: everybody in a run holds this one."""
        vars(self).update(vars(RunProgress(**saved)))


class CheckpointSaver:
    """Saves a run into its folder, and reads it back."""

    def __init__(
        self,
        run: TrainerFolder,
        config: XTTSConfig,
        trained: TrainedModel,
        data: RunData,
        environment: Mapping[str, Any],
    ):
        self.run = run
        self.config = config
        self.trained = trained
        self.data = data
        self.environment = environment
        self.progress = RunProgress()
        self.journal = ReplacementJournal()
        """Clips that failed at places still ahead, besides those a reader finds by itself."""
        self.saved_step: int | None = None
        """Of the checkpoint saved or restored last."""

    def save(self, metrics: Mapping[str, float]) -> Checkpoint | None:
        """The run as it is now, written by its `CheckpointStore`; None where another worker keeps the run."""
        step = self.progress.step
        state = TrainingState(
            step=step,
            metrics=metrics,
            position=save_position(step, self.journal, self.data.fingerprint, self.data.sampler),
            config=dump_sections(self.config),
            environment=self.environment,
            extra=asdict(self.progress),
        )
        saved = self.run.save(self.trained.collect_content(), self.trained.collect_tensors(), state)
        self.saved_step = step
        return saved

    def restore(self) -> None:
        """Takes weights, optimizer, position and progress from the checkpoint that the run goes on from, if there is one here."""
        saved = self.run.open_checkpoint()
        if saved is not None:
            journal = load_failures(saved.state.position, self.data.fingerprint)
            self.trained.restore(saved)
            self.journal = journal
            self.saved_step = saved.state.step
            self.progress.restore(saved.state.extra)


def describe_environment(plan: DevicePlan, processes: int = 1) -> dict[str, Any]:
    """The facts, of kinds that JSON knows.

    Args:
        processes: that share every batch.
    """
    execution = read_execution()
    # They make the same sums in another order.
    workers = processes * len(plan.trainers)
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "device_kind": plan.model.device[1:4],
        "intra_op_threads": execution.intra_op,
        "is_deterministic": execution.is_deterministic,
        "onednn": os.environ.get(ONEDNN, "default"),
        # Only where there are several: a run that was made before they could be must not differ from itself.
        **({"workers": workers} if workers > 1 else {}),
        **({"serves_xla": plan.serves_xla} if plan.model.is_gpu else {}),
    }
