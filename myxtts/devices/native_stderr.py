"""Silence for a C library that writes to the terminal behind Python's back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR_FD = 2

# File descriptor 2 belongs to the whole process: two holders at once would restore each other's pipe.
_holding = threading.Lock()


@contextmanager
def drop_lines(unwanted: re.Pattern[bytes]) -> Iterator[None]:
    """Keep lines that begin with a pattern off the terminal while the block runs.

    What else is written meanwhile, by other threads too, is handed on when the block ends.
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
                _hand_on(held, real, unwanted)
        finally:
            os.close(held)
            os.close(real)


def _hand_on(held: int, real: int, unwanted: re.Pattern[bytes]) -> None:
    size = os.lseek(held, 0, os.SEEK_END)
    lines = os.pread(held, size, 0).splitlines(keepends=True)
    others = b"".join(line for line in lines if not unwanted.match(line))
    if others:
        os.write(real, others)
