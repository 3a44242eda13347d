"""Bars made of characters, for the terminal."""

from __future__ import annotations

FULL, EMPTY = "━", "╌"
ASCII_FULL, ASCII_EMPTY = "#", "-"


def draw_bar(share: float | None, width: int, is_ascii: bool = False) -> str:
    """A bar of which a share is filled; question marks when the share is unknown."""
    if share is None:
        return "?" * width
    full, empty = (ASCII_FULL, ASCII_EMPTY) if is_ascii else (FULL, EMPTY)
    filled = round(min(1.0, max(0.0, share)) * width)
    return full * filled + empty * (width - filled)
