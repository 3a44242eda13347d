"""Numbers and lines as people read them; what is not known says so."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from myxtts.pipeline import units

UNKNOWN = "unknown"


def format_duration(seconds: float | None) -> str:
    """A stretch of time in its two largest units: `45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_step_time(seconds: float | None) -> str:
    """The time of one step: milliseconds below one second."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 0.9995:
        # What would be rounded to 1000 ms is a second.
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2f} ms"


def format_share(share: float | None, digits: int = 1) -> str:
    """A part of a whole, in percent with so many digits behind the point."""
    return UNKNOWN if share is None else f"{share:.{digits}%}"


def format_number(value: float | None, digits: int = 4) -> str:
    """A number to so many significant digits."""
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def format_parts(parts: Mapping[str, float]) -> str:
    """Numbers by name, in one line; nothing for none."""
    return ", ".join(f"{name} {format_number(value, 3)}" for name, value in parts.items())


def format_count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def format_bytes(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else units.format_bytes(size_bytes)


def wrap_titled(title: str, text: str, *, indent: int, width: int = 80, breaks_words: bool = True) -> list[str]:
    """The lines of a text beside its title, which has a column of its own.

    Args:
        width: of the lines, in characters.
        indent: of the text.
        breaks_words: whether a word that is longer than a line is cut; else the line is too long, and can be copied.
    """
    return textwrap.wrap(
        text,
        width,
        # A title that fills its column still stands apart from its text.
        initial_indent=f"{title} ".ljust(indent),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=breaks_words,
    )
