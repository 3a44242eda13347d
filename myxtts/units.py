"""Rates, hops and sizes that several rooms count in, and how numbers are written."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

SAMPLE_RATE_HZ = 22050
"""Rate of everything the GPT and the DVAE hear."""
SPEAKER_RATE_HZ = 16000
"""Rate of what the speaker encoder hears."""

HOP_SAMPLES = 256
FRAMES_PER_CODE = 4
SAMPLES_PER_CODE = HOP_SAMPLES * FRAMES_PER_CODE  # 1024, or 46.4 ms

MIN_SLICE_SAMPLES = 3 * SAMPLE_RATE_HZ  # 66150
MAX_SLICE_SAMPLES = 6 * SAMPLE_RATE_HZ  # 132300
MEAN_SLICE_SAMPLES = (MIN_SLICE_SAMPLES + MAX_SLICE_SAMPLES) // 2  # 99225


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
    """A size in the largest unit that leaves a number of at least one."""
    if size_bytes is None:
        return UNKNOWN
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def wrap_titled(title: str, text: str, *, indent: int, width: int = 80, breaks_words: bool = True) -> list[str]:
    """The lines of a text beside its title, which has a column of its own.

    A word that is longer than a line is cut, unless it must be possible to copy it.
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
