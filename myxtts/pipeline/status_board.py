"""What the producer is doing, readable by the trainer at any time, and after the producer's death.

It is written to shared memory and not sent, because it is written often and read only when something is wrong: a message
would wake the trainer every time.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple, Self

_BOARD_BYTES = mmap.PAGESIZE
_COUNT = struct.Struct("<Q")
_RECORD = struct.Struct("<qH")
_RECORD_BYTES = 512
_TEXT_BYTES = _RECORD_BYTES - _RECORD.size
_NO_POSITION = -1
_READ_TRIES = 100


class Status(NamedTuple):
    """What was last written."""

    writes: int
    """How often something was written: a change proves that the producer is not hanging."""
    stage: str
    position: int | None
    """The batch that is being worked on, if any."""


class StatusBoard:
    """A page of shared memory with the producer's stage and position.

    Of two records the count names the valid one, and is written last: whenever the writer is killed, one record is whole.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._page = mmap.mmap(descriptor, _BOARD_BYTES)

    @classmethod
    def create(cls) -> Self:
        """A board that says `start`."""
        descriptor = os.memfd_create("myxtts-status")
        try:
            os.posix_fallocate(descriptor, 0, _BOARD_BYTES)
            board = cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        board.write("start", None)
        return board

    def fileno(self) -> int:
        return self._descriptor

    def write(self, stage: str, position: int | None) -> None:
        (count,) = _COUNT.unpack_from(self._page)
        start = _find_record(count + 1)
        text = stage.encode("utf-8", "replace")[:_TEXT_BYTES]
        _RECORD.pack_into(self._page, start, _NO_POSITION if position is None else position, len(text))
        self._page[start + _RECORD.size : start + _RECORD.size + len(text)] = text
        _COUNT.pack_into(self._page, 0, count + 1)

    def read(self) -> Status:
        # A record is overwritten only by the second write after it; one that keeps pace with this loop is no sound producer.
        for _ in range(_READ_TRIES):
            (count,) = _COUNT.unpack_from(self._page)
            start = _find_record(count)
            position, length = _RECORD.unpack_from(self._page, start)
            text = self._page[start + _RECORD.size : start + _RECORD.size + min(length, _TEXT_BYTES)]
            if _COUNT.unpack_from(self._page) == (count,):
                break
        return Status(count, text.decode("utf-8", "replace"), None if position == _NO_POSITION else position)

    def close(self) -> None:
        self._page.close()
        os.close(self._descriptor)


def _find_record(count: int) -> int:
    return _RECORD_BYTES * (1 + count % 2)
