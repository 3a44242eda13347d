"""What a producer process has to say besides its batches: lines of its log and clips that failed, carried with a batch.

Its own standard error is read only when it dies, and a run must not hide in which way it prepares.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.drops import Drop, DropReason, DropReport

NOTES = "notes_U"
MOST_NOTE_BYTES = 1 << 15
"""Of a batch. What does not fit goes with the next one."""

_LONGEST_LINE = 2000


class NoteTaker(logging.Handler):
    """Collects what this process's code logs, and what is added to a drop report.

    Args:
        report: of clips that fail.
    """

    def __init__(self, report: DropReport):
        super().__init__(logging.INFO)
        self._notes: deque[list[Any]] = deque()
        self._report = report
        self._reported = len(report.replaced)

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(["log", record.levelno, record.name, record.getMessage()[:_LONGEST_LINE]])

    def dump(self) -> NDArray[np.uint8]:
        """What was noted since the last call, as `notes_U`."""
        for drop in self._report.replaced[self._reported :]:
            self._notes.append(["drop", drop.reason, drop.file, drop.where, drop.detail[:_LONGEST_LINE]])
        self._reported = len(self._report.replaced)
        lines: list[bytes] = []
        room = MOST_NOTE_BYTES
        while self._notes:
            line = json.dumps(self._notes[0]).encode()
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
            self._notes.popleft()
        return np.frombuffer(b"\n".join(lines), np.uint8)


class NoteReader:
    """Puts what a producer noted where it would be had it happened here.

    A producer that is started anew says most of it again; only what is new counts.

    Args:
        report: of clips that fail.
    """

    def __init__(self, report: DropReport):
        self._report = report
        self._known: set[tuple[Any, ...]] = set()

    def read(self, notes_U: NDArray[np.uint8]) -> None:
        """Logs and reports what is in `notes_U`."""
        for line in notes_U.tobytes().splitlines():
            note = tuple(json.loads(line))
            if note in self._known:
                continue
            self._known.add(note)
            match note:
                case ("log", int(level), str(name), str(text)):
                    logging.getLogger(name).log(level, "%s", text)
                case ("drop", str(reason), *rest):
                    self._report.replaced.append(Drop(DropReason(reason), *rest))
