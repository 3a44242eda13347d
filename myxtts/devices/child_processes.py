"""The end of a process that was started, and the end of what it has written."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Any


def end_child(process: subprocess.Popen[Any], patience_s: float) -> None:
    """Closes a child's pipes, if it has any, which tells it to end, and waits; it is killed when it takes longer."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            # A dead child's pipe may still hold a question, which then cannot be delivered.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_end(descriptor: int, most_bytes: int) -> str:
    """The end of the text in a file, wherever a process that writes to it is."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, most_bytes, max(0, size - most_bytes)).decode("utf-8", "replace").strip()
