"""An import of TensorFlow that does not end is not silent."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

IMPORT_S = 600.0
"""From a cold network disk TensorFlow takes minutes."""


@contextmanager
def watch_import(limit_s: float = IMPORT_S, descriptor: int = 2) -> Iterator[None]:
    """Has the stacks of all threads written to a file descriptor whenever what is imported within takes so much longer.

    By the interpreter's own watcher, because none of ours could: loading a library holds the interpreter until it is loaded.
    Nothing is ended: before the first step there is nothing to lose by waiting.
    """
    faulthandler.dump_traceback_later(limit_s, repeat=True, file=descriptor)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
