"""The folder of a worker that is not the chief: its own log and metrics, and nothing that a run is resumed from.

The chief alone keeps `run.json` and the checkpoints. At every start it hands out weights, optimizer and position, so other
workers need no copy of them, and `--checkpoint-dir` need not be on shared storage.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from myxtts.training.run_lock import hold_run_folder


class FollowerFolder:
    """An open folder; nobody else works in it until it is closed.

    Args:
        path: of the folder.
        stage: that is trained.
        command: the words that started this process.
        is_resumed: whether the chief's run goes on from a checkpoint.
    """

    checkpoint = None
    """What a run goes on from comes from the chief."""

    def __init__(self, path: Path, *, stage: str, command: Sequence[str], is_resumed: bool):
        self.path = path
        self.stage = stage
        self.is_resumed = is_resumed
        self._command = tuple(command)
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold_run_folder(path))
            self._lock = stack.pop_all()

    @property
    def resume_command(self) -> str:
        """The command that starts this worker again, for a shell."""
        return shlex.join([word for word in self._command if word != "--reset-training"])

    def describe_progress(self) -> str:
        """How far the run is, as far as it is known here."""
        return "the chief has what is saved"

    def note_choice(self, choice: Mapping[str, Any] | None) -> None:
        """Nothing: the chief keeps it."""

    def finish(self, ending: str, *, is_early: bool = False) -> None:
        """Nothing: the chief notes that the run has come to its end."""

    def close(self) -> None:
        """Lets others into the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
