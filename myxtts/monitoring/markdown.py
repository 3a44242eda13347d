"""Pieces of Markdown."""

from __future__ import annotations

import re


def fence(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than it has anywhere."""
    longest = max((len(marks) for marks in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"
