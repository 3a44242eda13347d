"""Silence for a C library that writes to the terminal behind Python's back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR_FD = 2
_MPG123_LINE = re.compile(rb"\[[^\]]*libmpg123|Note: |Warning: ")

# File descriptor 2 belongs to the whole process: two holders at once would restore each other's pipe.
_holding = threading.Lock()


@contextmanager
def drop_mpg123_messages() -> Iterator[None]:
    """Keep libmpg123's remarks on damaged files off the terminal while the block runs.

    libsndfile decodes MP3 with libmpg123 and gives no way to quieten it. What other threads write meanwhile is handed on
    when the block ends.
    """
    with _holding:
        try:
            real = os.dup(_STDERR_FD)
        except OSError:
            # A daemon without a stderr: nothing can reach a terminal.
            yield
            return
        held = os.memfd_create("held-stderr")
        try:
            os.dup2(held, _STDERR_FD)
            try:
                yield
            finally:
                os.dup2(real, _STDERR_FD)
                _hand_on(held, real)
        finally:
            os.close(held)
            os.close(real)


def _hand_on(held: int, real: int) -> None:
    size = os.lseek(held, 0, os.SEEK_END)
    lines = os.pread(held, size, 0).splitlines(keepends=True)
    others = b"".join(line for line in lines if not _MPG123_LINE.match(line))
    if others:
        os.write(real, others)
