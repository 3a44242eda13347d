"""Whether data workers see the files that they are asked for."""

from __future__ import annotations

import logging
import os

from myxtts.data.errors import UnseenFilesError
from myxtts.data.loading import Load
from myxtts.data.service.messages import Arrival

_log = logging.getLogger(__name__)

MOST_UNSEEN = 8
"""Files in a row that a data worker may fail to read though this machine sees them: storage has its moments."""


class Sight:
    """Which machines cannot read the files that this one can."""

    def __init__(self) -> None:
        self._unseen_in_a_row: dict[str, int] = {}

    def note(self, load: Load, arrival: Arrival) -> None:
        """Raises `UnseenFilesError` for a machine that has seen none of the last files. Single ones are read here instead."""
        unseen = [path for row in arrival.unseen if (path := _find_path(load, row)) and os.path.exists(path)]
        machine = arrival.machine or "an unknown machine"
        if arrival.loaded or not unseen:
            self._unseen_in_a_row[machine] = 0
        for path in unseen:
            _log.warning("The data worker on %s cannot read %s: it is read on this machine.", machine, path)
        self._unseen_in_a_row[machine] = self._unseen_in_a_row.get(machine, 0) + len(unseen)
        if self._unseen_in_a_row[machine] >= MOST_UNSEEN:
            raise UnseenFilesError(
                f"The data worker on {machine} cannot read {unseen[0]}, though this machine can. Data workers read the files "
                "themselves: the corpus must lie on storage that all machines share, under the same path. Mount it there, or "
                "stop that worker, and start the run again: it resumes."
            )


def _find_path(load: Load, row: int) -> str:
    file = load.files[row]
    return file.path if file else ""
