"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size_bytes: int) -> str:
    """A size in the largest unit that leaves a number of at least one."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"
