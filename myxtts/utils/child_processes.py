"""The end of processes that answer questions over pipes."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any


def end_child(process: subprocess.Popen[Any], patience_s: float) -> None:
    """Closes a child's pipes, which tells it to end, and waits; it is killed when it takes longer."""
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
