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
        self.wav: Samples | None = None
        """What was loaded, where it lies in memory of its own."""
        self.place = 0
        """The engine's: where the load is."""
        self.is_cancelled = False

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
        if self.wav is not None:
            self.wav[row] = 0.0

    def load_pending(self) -> None:
        """Try the pending rows in this process."""
        if self.wav is None:
            self.wav = np.zeros((self.rows, self.samples), dtype=np.float32)
        for row in sorted(self.pending):
            file = self.files[row]
            assert file is not None
            self.note(row, load_clip(file, self.wav[row]))


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

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        return Load(files, samples)

    def finish(self, load: Load) -> None:
        load.load_pending()

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        load.change_file(row, file)

    def take(self, load: Load) -> Samples:
        assert load.wav is not None
        return load.wav

    def cancel(self, load: Load) -> None:
        pass

    def close(self) -> None:
        pass
