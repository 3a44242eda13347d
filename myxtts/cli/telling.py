"""What a command is doing while one waits for it."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Says it on standard error: standard output is for the answer."""
    print(f"... {text}", file=sys.stderr, flush=True)
