"""The order of steps from Persian as people write it to Persian as a model should see it."""

from __future__ import annotations

import unicodedata

from myxtts.text.numbers import write_ascii_digits
from myxtts.text.persian.abbreviations import expand_abbreviations, expand_by_numbers
from myxtts.text.persian.calendar import expand_dates, expand_times
from myxtts.text.persian.letters import unify_letters
from myxtts.text.persian.quantities import (
    expand_fractions,
    expand_money,
    expand_ordinals,
    expand_plain_numbers,
    expand_telephones,
    join_thousands,
)
from myxtts.text.persian.signs import expand_signs, expand_units
from myxtts.text.persian.spacing import join_half_spaces, tidy_spaces, unify_marks

_NUMBER_SIGNS = str.maketrans("٫٪−", ".%-")
_STEPS = (
    expand_by_numbers,
    expand_dates,
    expand_times,
    expand_telephones,
    join_thousands,
    expand_units,
    expand_money,
    expand_fractions,
    expand_ordinals,
    expand_plain_numbers,
    expand_signs,
    unify_marks,
    tidy_spaces,
    # Only now do "ه.ش", "ه. ش" and "ه . ش" look alike, with no sign or number glued to them.
    expand_abbreviations,
    tidy_spaces,
    join_half_spaces,
)


def normalise_persian(text: str, keep_diacritics: bool = False) -> str:
    """Persian text with one spelling for each letter, numbers and signs in words, and Persian punctuation.

    Words of other scripts stay, in lower case. What nobody can speak (pictures, control characters) goes.

    Args:
        keep_diacritics: keep the vowel signs, tanvin and tashdid, which Persian text has only here and there.
    """
    text = unify_letters(text.lower(), keep_diacritics)
    text = " ".join(write_ascii_digits(text).translate(_NUMBER_SIGNS).split())
    for step in _STEPS:
        text = step(text)
    # Vowel signs that stood apart may have come together.
    return unicodedata.normalize("NFC", text)
