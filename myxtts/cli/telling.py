"""What a command is doing while one waits for it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def tell(text: str) -> None:
    """Says it on standard error: standard output is for the answer."""
    print(f"... {text}", file=sys.stderr, flush=True)


def show_progress(what: str, done: int, total: int) -> None:
    """Counts on one line of standard error, where that is a terminal."""
    if sys.stderr.isatty():
        terminal = getattr(sys.stderr, "unescaped", sys.stderr)
        print(f"\r{what} {done} of {total}", end="\n" if done == total else "", file=terminal, flush=True)


@contextmanager
def quiet_scan() -> Iterator[None]:
    """Keeps the scan's table of what is set aside out of the log, for a command whose own answer tells of it."""
    # Not imported above: --help needs none of it.
    from myxtts.data import scan

    log = logging.getLogger(scan.__name__)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
