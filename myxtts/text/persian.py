"""Persian text as a model should see it: one spelling for each letter, numbers and signs in words, tidy spaces."""

from __future__ import annotations

import re
import unicodedata

from myxtts.text.numbers import write_ascii_digits
from myxtts.text.persian_letters import (
    ZWNJ,
    expand_signs,
    expand_units,
    join_half_spaces,
    tidy_spaces,
    unify_letters,
    unify_marks,
)
from myxtts.text.persian_numbers import (
    expand_dates,
    expand_fractions,
    expand_money,
    expand_ordinals,
    expand_plain_numbers,
    expand_telephones,
    expand_times,
    join_thousands,
)

_DOTTED = {
    "ج.ا.ا": "جمهوری اسلامی ایران",
    "ه.ش": "هجری شمسی",
    "ه.ق": "هجری قمری",
    "ق.م": "قبل از میلاد",
    "پ.م": "پیش از میلاد",
    "ب.م": "بعد از میلاد",
    "ق.ظ": "قبل از ظهر",
    "ب.ظ": "بعد از ظهر",
    "ر.ک": "رجوع کنید به",
    "ص.پ": "صندوق پستی",
    "پ.ن": f"پی{ZWNJ}نوشت",
}
_HONORIFICS = {
    "ص": "صلی الله علیه و آله",
    "ع": "علیه السلام",
    "س": "سلام الله علیها",
    "ره": "رحمت الله علیه",
    "رض": "رضی الله عنه",
    "عج": "عجل الله تعالی فرجه",
}
_BEFORE_NUMBER = {"صص": "صفحات", "ص": "صفحه", "ج": "جلد", "ش": "شماره"}
_AFTER_YEAR = {"م": "میلادی", "ش": "شمسی", "ق": "قمری"}
_TITLES = "دکتر|مهندس|استاد|پروفسور|آقای|خانم"

_PIECE = rf"[\w{ZWNJ}]"
# The dot at the end may also end the sentence: it goes only if something follows.
_LAST_DOT = r"(?: *\.(?= *[^\s.]))?"
_DOTTED_PATTERN = re.compile(
    rf"(?<!{_PIECE})({'|'.join(short.replace('.', ' *[.] *') for short in _DOTTED)})(?!{_PIECE}){_LAST_DOT}"
)
_HONORIFIC_PATTERN = re.compile(rf"\( ?({'|'.join(_HONORIFICS)}) ?\)")
_BEFORE_NUMBER_PATTERN = re.compile(rf"(?<!{_PIECE})({'|'.join(_BEFORE_NUMBER)}) ?[.:]? ?(?=\d)")
_AFTER_YEAR_PATTERN = re.compile(rf"(?<!\d)(\d{{3,4}}) ?({'|'.join(_AFTER_YEAR)})\.(?!{_PIECE})")
_TITLE_PATTERN = re.compile(rf"(?<!{_PIECE})({_TITLES}) *\. *(?={_PIECE})")


def expand_by_numbers(text: str) -> str:
    """The text, its digits 0 to 9, with the abbreviations that only a number beside them gives away in full."""
    text = _BEFORE_NUMBER_PATTERN.sub(lambda match: f"{_BEFORE_NUMBER[match[1]]} ", text)
    return _AFTER_YEAR_PATTERN.sub(_say_era, text)


def expand_abbreviations(text: str) -> str:
    """The tidied text with all other abbreviations in full; its spaces need tidying again."""
    text = _DOTTED_PATTERN.sub(lambda match: f" {_DOTTED[match[1].replace(' ', '')]} ", text)
    text = _HONORIFIC_PATTERN.sub(lambda match: f" {_HONORIFICS[match[1]]} ", text)
    return _TITLE_PATTERN.sub(lambda match: f"{match[1]} ", text)


def _say_era(match: re.Match[str]) -> str:
    stop = "" if match.string[match.end() :].strip() else "."
    return f"{match[1]} {_AFTER_YEAR[match[2]]}{stop} "


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
