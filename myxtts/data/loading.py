"""Loads of clips that are under way, and who does them.

A reader starts many loads ahead and finishes them in order. Whoever does the work, the samples are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from myxtts.data.clip_loading import ClipFile, LoadFailure, load_clip

Samples = NDArray[np.float32]
"""(rows, samples)."""


class Load:
    """Some clips on their way into one array.

    Args:
        files: by row; None is a row of zeros.
        samples: length of every row.
    """

    def __init__(self, files: Sequence[ClipFile | None], samples: int):
        self.files = list(files)
        self.samples = samples
        self.failures: dict[int, LoadFailure] = {}
        """Rows that were tried and failed. `retry` takes a row out."""
        self.pending = {row for row, file in enumerate(files) if file is not None}
        """Rows that have still to be tried."""

    @property
    def rows(self) -> int:
        return len(self.files)

    def note(self, row: int, failure: LoadFailure | None) -> None:
        """A row was tried."""
        self.pending.discard(row)
        if failure:
            self.failures[row] = failure

    def change_file(self, row: int, file: ClipFile | None) -> None:
        """Another clip, or none, for a row that failed."""
        self.failures.pop(row, None)
        self.files[row] = file
        if file:
            self.pending.add(row)


class LoadingEngine(ABC):
    """Does loads. Not for several threads. A context manager that closes itself."""

    @abstractmethod
    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        """Begin a load, or queue it behind those begun before."""

    @abstractmethod
    def finish(self, load: Load) -> None:
        """Wait until every row of a load was tried. Those that failed are in `load.failures`."""

    @abstractmethod
    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        """Another file for a row that failed; `finish` the load again. None makes it a row of zeros."""

    @abstractmethod
    def take(self, load: Load) -> Samples:
        """The samples of a finished load, which then is over. Not to be written to."""

    @abstractmethod
    def cancel(self, load: Load) -> None:
        """End a load that nobody will take."""

    @abstractmethod
    def close(self) -> None:
        """End whatever is under way; no process, thread or memory of the engine is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class InProcessEngine(LoadingEngine):
    """Loads in this process, when a load is finished: nothing runs ahead."""

    def __init__(self) -> None:
        self._arrays: dict[Load, Samples] = {}

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        return Load(files, samples)

    def finish(self, load: Load) -> None:
        if load not in self._arrays:
            self._arrays[load] = np.zeros((load.rows, load.samples), dtype=np.float32)
        load_pending(load, self._arrays[load])

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        load.change_file(row, file)
        self._arrays[load][row] = 0.0

    def take(self, load: Load) -> Samples:
        return self._arrays.pop(load)

    def cancel(self, load: Load) -> None:
        self._arrays.pop(load, None)

    def close(self) -> None:
        self._arrays.clear()


def load_pending(load: Load, array: Samples) -> None:
    """Try the pending rows of a load in this process."""
    for row in sorted(load.pending):
        file = load.files[row]
        assert file is not None
        load.note(row, load_clip(file, array[row]))
