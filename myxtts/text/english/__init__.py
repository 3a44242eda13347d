"""English beyond XTTS' own cleaning: dates, times, years, large amounts, units, telephone numbers, addresses of the web.

Every rule turns one way of writing into words and leaves alone what the cleaning of XTTS already reads well, so that the
two can follow each other. The text still has its capitals here: "May 5" is a date, "may 5" is not.
"""

from __future__ import annotations

from myxtts.text.english.dates import expand_dates, expand_times, expand_years
from myxtts.text.english.quantities import (
    expand_codes,
    expand_fractions,
    expand_money,
    expand_ranges,
    expand_telephones,
    expand_units,
)
from myxtts.text.english.written_forms import expand_roman_numerals, expand_signs, expand_titles, expand_web_addresses

_STEPS = (
    # From the most specific way of writing to the least: 2021-05-17 is a date before it is a range or a telephone number.
    expand_web_addresses,
    expand_dates,
    expand_times,
    expand_years,
    expand_telephones,
    expand_money,
    expand_codes,
    expand_fractions,
    expand_units,
    expand_ranges,
    expand_roman_numerals,
    expand_titles,
    expand_signs,
)


def expand_english(text: str) -> str:
    """The text with what XTTS' own cleaning would misread in words. Its case is kept where nothing was changed."""
    for step in _STEPS:
        text = step(text)
    return text
