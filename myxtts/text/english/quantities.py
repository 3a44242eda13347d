"""English amounts, units, fractions, telephone numbers and ranges in words."""

from __future__ import annotations

import re

from myxtts.text.number_words import say_decimal, say_integer, say_ordinal, spell_digits
from myxtts.text.numbers import FRACTION_SIGNS, read_fraction_sign

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"

_SCALES = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "", ""),
}
_SCALED_MONEY = re.compile(
    rf"([$£€¥₹]) ?({_NUMBER})(?: ?(thousand|million|billion|trillion)|(k|mn?|bn?|tn))\b", re.IGNORECASE | re.ASCII
)
_HUNDREDTHS = re.compile(r"([$£€])0?\.(\d\d)(?!\d|\.\d)")
_OTHER_MONEY = re.compile(rf"([¥₹]) ?({_NUMBER})")
_CENTS = re.compile(r"(?<![\d.,])(\d+) ?¢")

_UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "ml": ("milliliter", "milliliters"),
    "lbs": ("pound", "pounds"),
    "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ft": ("foot", "feet"),
    "khz": ("kilohertz", "kilohertz"),
    "mhz": ("megahertz", "megahertz"),
    "ghz": ("gigahertz", "gigahertz"),
    "hz": ("hertz", "hertz"),
    "kb": ("kilobyte", "kilobytes"),
    "mb": ("megabyte", "megabytes"),
    "gb": ("gigabyte", "gigabytes"),
    "tb": ("terabyte", "terabytes"),
    "°c": ("degree celsius", "degrees celsius"),
    "°f": ("degree fahrenheit", "degrees fahrenheit"),
}
# With a dot "ft." would be read as "fort" later on.
_UNIT = re.compile(rf"(?<![\w.,])({_NUMBER}) ?({'|'.join(_UNITS)})\b(?:(?<=ft)\.(?= \S))?", re.IGNORECASE | re.ASCII)

_FRACTION_SIGN = re.compile(rf"(?:(?<!\d)(\d+))?([{FRACTION_SIGNS}])")
# Only the denominators people measure with: 9/11 and 24/7 are not fractions.
_FRACTION = re.compile(r"(?<![\w./,:-])(?:(\d+) )?([1-9]\d?)/(2|3|4|5|6|8|10|16)(?![\w/]|[.,:]\d)")

_NAMED_PARTS = {"2": "half", "4": "quarter"}

_TELEPHONE = re.compile(
    r"(?<![\w.,/-])(?:"
    r"(?P<international>\+\d{1,3}(?:[- .]\d{2,4}){2,5})"
    r"|(?:\d[- .])?\(?\d{3}\)?[- .]\d{3}[- .]\d{4}"
    r"|\d{3}-\d{4}"
    r")(?![\w/]|[-.,]\d)"
)
_VERSION = re.compile(r"(?<![\d.,])\d+(?:\.\d+){2,}(?!\d|,\d)")
_LEADING_ZERO = re.compile(r"(?<![\d.,:/])0\d+(?![\d:/]|[.,]\d)")
_RANGE = re.compile(r"(?<![\w.,/$£€-])(\d{1,9}) ?([-–]) ?(\d{1,9})(?![\w/–-]|[.,]\d)")
_MINUS = re.compile(r"(?<![\w.)\]%°-])[-−](?=[$£€]?\d)")


def expand_money(text: str) -> str:
    """The text with amounts XTTS' own cleaning misreads in words: $3 million, £5k, $0.99, ¥500, 50¢."""
    text = _SCALED_MONEY.sub(_say_scaled_money, text)
    text = _HUNDREDTHS.sub(_say_hundredths, text)
    text = _OTHER_MONEY.sub(lambda match: f"{_say(match[2])} {_pick(match[1], _is_one(match[2]))}", text)
    return _CENTS.sub(lambda match: f"{_say(match[1])} {'cent' if _is_one(match[1]) else 'cents'}", text)


def expand_units(text: str) -> str:
    """The text with units behind numbers in words."""
    return _UNIT.sub(lambda match: f"{match[1]} {_UNITS[match[2].lower()][not _is_one(match[1])]}", text)


def expand_fractions(text: str) -> str:
    """The text with ½ and 3/4 in words."""
    text = _FRACTION_SIGN.sub(lambda match: _say_fraction(match[1], *read_fraction_sign(match[2])), text)
    return _FRACTION.sub(_say_written_fraction, text)


def expand_telephones(text: str) -> str:
    """The text with telephone numbers digit by digit, a pause between their groups."""

    def say(match: re.Match[str]) -> str:
        plus = "plus " if match["international"] else ""
        return plus + ", ".join(spell_digits(group, "en") for group in re.findall(r"\d+", match[0]))

    return _TELEPHONE.sub(say, text)


def expand_codes(text: str) -> str:
    """The text with 2.0.1 and 192.168.0.1 as numbers with "point" between, and 007 digit by digit."""
    text = _VERSION.sub(lambda match: " point ".join(_say(part) for part in match[0].split(".")), text)
    return _LEADING_ZERO.sub(lambda match: spell_digits(match[0], "en"), text)


def expand_ranges(text: str) -> str:
    """The text with 10-12 as ten to twelve, and a minus before a number as a word."""

    def say(match: re.Match[str]) -> str:
        # A hyphen between falling numbers is a score or a name: 3-2, 747-400.
        is_range = match[2] == "–" or int(match[1]) < int(match[3])
        return f"{match[1]} to {match[3]}" if is_range else match[0]

    return _MINUS.sub("minus ", _RANGE.sub(say, text))


def _say(number: str) -> str:
    whole, _, fraction = number.replace(",", "").partition(".")
    return say_decimal(whole, fraction, "en") if fraction else say_integer(whole, "en")


def _is_one(number: str) -> bool:
    return number == "1"


def _pick(sign: str, is_one: bool, hundredths: bool = False) -> str:
    return _CURRENCIES[sign][2 * hundredths + (not is_one)]


def _say_scaled_money(match: re.Match[str]) -> str:
    scale = match[3].lower() if match[3] else _SCALES[match[4].lower()]
    return f"{_say(match[2])} {scale} {_pick(match[1], is_one=False)}"


def _say_hundredths(match: re.Match[str]) -> str:
    count = match[2].lstrip("0")
    return f"{_say(count)} {_pick(match[1], _is_one(count), hundredths=True)}" if count else match[0]


def _say_written_fraction(match: re.Match[str]) -> str:
    whole, numerator, denominator = match.groups()
    return _say_fraction(whole, numerator, denominator) if int(numerator) < int(denominator) else match[0]


def _say_fraction(whole: str | None, numerator: str, denominator: str) -> str:
    part = _NAMED_PARTS.get(denominator) or say_ordinal(denominator, "", "en")
    part += "" if numerator == "1" else "s"
    if whole is None:
        return f"{say_integer(numerator, 'en')} {part}"
    count = "a" if numerator == "1" and denominator in _NAMED_PARTS else say_integer(numerator, "en")
    return f"{say_integer(whole, 'en')} and {count} {part}"
