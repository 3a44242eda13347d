"""Persian number words.

num2words has Persian, but says "ten and a half" for 10.05, nothing at all from 10**18 on, and "سیم" (wire) for the thirtieth.
"""

from __future__ import annotations

from myxtts.text.persian.letters import ZWNJ

UNDER_TWENTY = (
    *("صفر", "یک", "دو", "سه", "چهار", "پنج", "شش", "هفت", "هشت", "نه"),
    *("ده", "یازده", "دوازده", "سیزده", "چهارده", "پانزده", "شانزده", "هفده", "هجده", "نوزده"),
)
TENS = ("", "", "بیست", "سی", "چهل", "پنجاه", "شصت", "هفتاد", "هشتاد", "نود")
HUNDREDS = ("", "صد", "دویست", "سیصد", "چهارصد", "پانصد", "ششصد", "هفتصد", "هشتصد", "نهصد")
SCALES = (
    *("", "هزار", "میلیون", "میلیارد", "تریلیون", "کوادریلیون", "کوینتیلیون"),
    *("سکستیلیون", "سپتیلیون", "اکتیلیون", "نونیلیون", "دسیلیون"),
)
"""Names of the groups of three digits, from the right."""
LONGEST_NAMED = 3 * len(SCALES)

_JOIN = " و "
_LONGEST_FRACTION = 3
"""Decimals up to this length are said as one number, longer ones digit by digit."""


def say_cardinal(digits: str) -> str:
    """The number that a string of digits 0 to 9 stands for; digit by digit where it has no name."""
    significant = digits.lstrip("0")
    if not significant:
        return UNDER_TWENTY[0]
    if len(significant) > LONGEST_NAMED:
        return spell_digits(digits)
    padded = significant.zfill(-(-len(significant) // 3) * 3)
    groups = [int(padded[i : i + 3]) for i in range(0, len(padded), 3)]
    words = []
    for rank, group in zip(reversed(range(len(groups))), groups, strict=True):
        if not group:
            continue
        # A thousand is just هزار, but a million is یک میلیون.
        words.append(SCALES[1] if (group, rank) == (1, 1) else f"{_say_group(group)} {SCALES[rank]}".strip())
    return _JOIN.join(words)


def _say_group(value: int) -> str:
    words = []
    if value >= 100:
        words.append(HUNDREDS[value // 100])
        value %= 100
    if value >= 20:
        words.append(TENS[value // 10])
        value %= 10
    if value:
        words.append(UNDER_TWENTY[value])
    return _JOIN.join(words)


def spell_digits(digits: str) -> str:
    """Each digit as a word of its own."""
    return " ".join(UNDER_TWENTY[int(digit)] for digit in digits)


def say_grouped(digits: str) -> str:
    """A group out of a longer code as one number, its leading zeros said: صفر نهصد و دوازده."""
    significant = digits.lstrip("0")
    zeros = [UNDER_TWENTY[0]] * (len(digits) - len(significant))
    return " ".join([*zeros, say_cardinal(significant)] if significant else zeros)


def say_ordinal(digits: str) -> str:
    """The ordinal: پنجم, بیست و سوم, سی‌ام."""
    cardinal = say_cardinal(digits)
    if cardinal.endswith("سه"):
        return f"{cardinal[:-2]}سوم"
    if cardinal.endswith("سی"):
        return f"{cardinal}{ZWNJ}ام"
    return f"{cardinal}م"


def say_decimal(whole: str, fraction: str) -> str:
    """A decimal number: سه ممیز چهارده."""
    spoken = say_grouped(fraction) if len(fraction) <= _LONGEST_FRACTION else spell_digits(fraction)
    return f"{say_cardinal(whole)} ممیز {spoken}"


def say_fraction(numerator: str, denominator: str) -> str:
    """A fraction: سه چهارم."""
    return f"{say_cardinal(numerator)} {say_ordinal(denominator)}"
