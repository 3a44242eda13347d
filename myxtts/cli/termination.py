"""An end by SIGTERM that clears up, as one by Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def end_on_sigterm() -> Iterator[None]:
    """A block that SIGTERM leaves by an exception, so that what stands in `finally` is done before the process ends.

    For the main thread, which alone may say what a signal does.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        # None where a library had taken the signal outside of Python.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
