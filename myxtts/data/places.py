"""Places of a global batch in a journal: a row, or the voice prompt of a row. Pure Python, for those who know no clips."""

from __future__ import annotations

from typing import NamedTuple


class NamedPlace(NamedTuple):
    """What the place of a row or of its prompt stands for."""

    row: int
    is_prompt: bool


def name_prompt(row: int) -> int:
    """The place of a row's voice prompt in a journal."""
    return -1 - row


def parse_place(place: int) -> NamedPlace:
    """The row that a place belongs to, and whether it is that of the row's prompt."""
    return NamedPlace(place, False) if place >= 0 else NamedPlace(name_prompt(place), True)
