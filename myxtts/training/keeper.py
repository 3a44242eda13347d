"""Saving a run: what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from myxtts.checkpoints.store import Checkpoint, TrainingCheckpoint, TrainingState, read_training_checkpoint
from myxtts.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.data.replacements import Failure, ReplacementJournal
from myxtts.data.resume import SamplerPosition, load_position, save_position
from myxtts.data.run_data import RunData
from myxtts.training.follower_folder import FollowerFolder
from myxtts.training.run_folder import RunFolder
from myxtts.training.trained_model import TrainedModel


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


class Keeper:
    """Saves a run into its folder, and reads it back.

    Args:
        run: the folder.
        config: the settings in force.
        trained: what is trained.
        data: what it is trained on.
        environment: the facts that bits depend on.
    """

    def __init__(
        self,
        run: RunFolder | FollowerFolder,
        config: XTTSConfig,
        trained: TrainedModel,
        data: RunData,
        environment: Mapping[str, Any],
    ):
        self._run = run
        self._config = config
        self._trained = trained
        self._data = data
        self._environment = environment
        self.journal = ReplacementJournal()
        """Clips that failed at places still ahead, besides those a reader finds by itself."""
        self.saved_step: int | None = None
        """Of the checkpoint saved or restored last."""

    def note_failures(self, failures: Iterable[Failure]) -> None:
        """Clips that were replaced, to be replaced again when the run is resumed before them."""
        for failure in failures:
            self.journal.record(failure)

    def save(self, progress: RunProgress, metrics: Mapping[str, float]) -> Checkpoint | None:
        """Writes a checkpoint, verified. Whatever goes wrong, the older ones stay. None where another worker keeps the run."""
        if isinstance(self._run, FollowerFolder):
            self.saved_step = progress.step
            return None
        position = SamplerPosition(progress.step, self.journal)
        state = TrainingState(
            step=progress.step,
            metrics=metrics,
            position=save_position(position, self._data.fingerprint, self._data.sampler),
            config=dump_sections(self._config),
            environment=self._environment,
            extra=asdict(progress),
        )
        saved = self._run.store.save(
            model=self._trained.collect_content(), tensors=self._trained.collect_tensors(), state=state
        )
        self.saved_step = progress.step
        return saved

    def restore(self, checkpoint: Checkpoint) -> RunProgress:
        """Takes weights, optimizer, position and progress from a checkpoint of this run."""
        saved: TrainingCheckpoint = read_training_checkpoint(checkpoint.path, verify_checksums=False)
        position = load_position(saved.state.position, self._data.fingerprint)
        self._trained.restore(saved)
        self.journal = position.journal
        self.saved_step = saved.state.step
        return RunProgress(**saved.state.extra)
