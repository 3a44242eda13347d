"""Persian amounts, percentages, fractions, ordinals, telephone numbers and every other number in words.

The text comes with digits 0 to 9. Each word put in has a space on both sides; spaces are tidied later.
"""

from __future__ import annotations

import re

from myxtts.text.numbers import FRACTION_SIGNS, read_fraction_sign
from myxtts.text.persian.letters import ZWNJ
from myxtts.text.persian.number_words import (
    say_cardinal,
    say_decimal,
    say_fraction,
    say_grouped,
    say_ordinal,
)

_SCALE_WORDS = "هزار|میلیون|میلیارد|تریلیون"
_CURRENCY_WORDS = "تومان|تومن|ریال|دلار|یورو|پوند"
_MEASURE_WORDS = "درصد|متر|کیلو|سانتی|میلی|گرم|لیتر|تن|درجه|ساعت|برابر|ریشتر|واحد"

_GROUPED = re.compile(r"(?<![\d.,،٬])\d{1,3}(?:[,،٬]\d{3})+(?!\d)")
_DOT_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:(?:\.\d{{3}}){{2,}}(?![\d.])|\.\d{{3}}(?= ?(?:{_CURRENCY_WORDS})))")

_CURRENCIES = {
    "$": ("دلار", "سنت"),
    "€": ("یورو", "سنت"),
    "£": ("پوند", "پنس"),
    "¥": ("ین", None),
    "₹": ("روپیه", None),
}
_NUMBER = r"\d+(?:\.\d+)?"
_MONEY = re.compile(
    rf"([$€£¥₹]) ?({_NUMBER})(?: ({_SCALE_WORDS})\b)?|(?<![\d.])({_NUMBER})(?: ({_SCALE_WORDS}))? ?([$€£¥₹])"
)
_PERCENTAGE = re.compile(rf"(?<![\d.])({_NUMBER}) ?%|%({_NUMBER})")

_SLASH = re.compile(
    r"(?<![\w/.])(\d{1,9})/(\d{1,9})(?![\d/]|\.\d)"
    rf"(?=(?P<measure> ?(?:%|{_SCALE_WORDS}|{_CURRENCY_WORDS}|{_MEASURE_WORDS}))?)"
)
_FRACTION_SIGN = re.compile(rf"(?:(?<!\d)(\d+) ?)?([{FRACTION_SIGNS}])")
_ORDINAL = re.compile(rf"(?<![\d.])(\d+)(?:{ZWNJ}?م|[ {ZWNJ}]?ام)(ین)?(?![\w{ZWNJ}])")

_TELEPHONE = re.compile(r"(?<![\w.,/:+-])(\+?)(\d+(?:[ -]\d+)*)(?![\d:/]|[.,]\d)")
_CARD = re.compile(r"(?<![\w.,/:-])\d{4}(?:[ -]?\d{4}){3}(?![\d:/-]|[.,]\d)")
_RANGE = re.compile(r"(?<![\w.])(\d{1,9}) ?[-–] ?(\d{1,9})(?![\w–-]|\.\d)")
_HYPHEN_BY_WORD = re.compile(r"(?<=[^\W\d_])-(?=\d)|(?<=\d)-(?=[^\W\d_])")
_CHAIN = re.compile(r"(?<!\d)\d+(?:\.\d+){2,}")
_DECIMAL = re.compile(r"(?<!\d)(\d+)\.(\d+)")
_INTEGER = re.compile(r"\d+")
_SIGN = re.compile(r"(?<![\w)%])([-+])(?=\d)")

_LONGEST_COUNT = 15
"""More digits than this in one run are a code (a bank card, an account): read in groups of four."""
_TELEPHONE_LENGTHS = range(8, 15)


def join_thousands(text: str) -> str:
    """The text with the separators inside 50,000 and 1.500.000 taken out."""

    def join(match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match[0])
        # Too long for a run of digits to be taken for a count, but its separators say that it is one.
        return digits if len(digits) <= _LONGEST_COUNT else f" {say_cardinal(digits)} "

    return _DOT_GROUPED.sub(join, _GROUPED.sub(join, text))


def expand_telephones(text: str) -> str:
    """The text with telephone and card numbers in words, in the groups they are written or usually said in."""
    text = _CARD.sub(lambda match: _say_groups(_cut(re.sub(r"\D", "", match[0]), 4)), text)

    def say(match: re.Match[str]) -> str:
        sign, written = match.groups()
        digits = re.sub(r"\D", "", written)
        if len(digits) not in _TELEPHONE_LENGTHS or not (sign or written.startswith("0")):
            return match[0]
        first, *rest = re.findall(r"\d+", written)
        if rest and max(map(len, [first, *rest])) <= 4:
            groups = [first, *(pair for group in rest for pair in _cut(group, 2 if len(group) == 4 else 3))]
        else:
            groups = _group_telephone(digits, bool(sign))
        return f"{' مثبت' if sign else ''}{_say_groups(groups)}"

    return _TELEPHONE.sub(say, text)


def expand_money(text: str) -> str:
    """The text with $20.50 and 3 میلیون € in words."""

    def say(match: re.Match[str]) -> str:
        sign, number, scale = (match[1], match[2], match[3]) if match[1] else (match[6], match[4], match[5])
        unit, hundredth = _CURRENCIES[sign]
        whole, _, fraction = number.partition(".")
        if hundredth and len(fraction) == 2 and not scale:
            return f" {say_cardinal(whole)} {unit} و {say_cardinal(fraction)} {hundredth} "
        return f" {number} {scale or ''} {unit} "

    return _MONEY.sub(say, text)


def expand_fractions(text: str) -> str:
    """The text with ½, 3/4 and percentages in words, and 3/5 with a measure behind it as the decimal it is in Persian."""
    text = _FRACTION_SIGN.sub(_say_fraction_sign, text)
    text = _SLASH.sub(_say_slash, text)
    return _PERCENTAGE.sub(lambda match: f" {match[1] or match[2]} درصد ", text)


def expand_ordinals(text: str) -> str:
    """The text with 5م, 30ام and 21مین in words."""
    return _ORDINAL.sub(lambda match: f" {say_ordinal(match[1])}{match[2] or ''} ", text)


def expand_plain_numbers(text: str) -> str:
    """The text with every number that is left in words, ranges and signs included."""
    text = _HYPHEN_BY_WORD.sub(" ", _RANGE.sub(_say_range, text))
    text = _SIGN.sub(lambda match: " مثبت " if match[1] == "+" else " منفی ", text)
    text = _CHAIN.sub(lambda match: " نقطه ".join(f" {say_grouped(part)} " for part in match[0].split(".")), text)
    text = _DECIMAL.sub(lambda match: f" {say_decimal(match[1], match[2])} ", text)
    return _INTEGER.sub(lambda match: f" {_say_run(match[0])} ", text)


def _say_run(digits: str) -> str:
    return _say_groups(_cut(digits, 4)) if len(digits) > _LONGEST_COUNT else say_grouped(digits)


def _say_groups(groups: list[str]) -> str:
    return f" {'، '.join(map(say_grouped, groups))} "


def _cut(digits: str, size: int) -> list[str]:
    return [digits[i : i + size] for i in range(0, len(digits), size)]


def _group_telephone(digits: str, international: bool) -> list[str]:
    """Mobile numbers as 0912 345 67 89, others as area code and pairs, country codes in front."""
    if international:
        national = _group_telephone(f"0{digits[2:]}", international=False)
        return [digits[:2], national[0][1:], *national[1:]]
    if digits.startswith("00"):
        return ["00", *_group_telephone(digits[2:], international=True)]
    if digits.startswith("09") and len(digits) == 11:
        return [digits[:4], digits[4:7], digits[7:9], digits[9:]]
    rest = digits[3:]
    odd = len(rest) % 2
    return [digits[:3], *([rest[:3]] if odd else []), *_cut(rest[3:] if odd else rest, 2)]


def _say_fraction_sign(match: re.Match[str]) -> str:
    fraction = say_fraction(*read_fraction_sign(match[2]))
    return f" {say_cardinal(match[1])} و {fraction} " if match[1] else f" {fraction} "


def _say_slash(match: re.Match[str]) -> str:
    left, right = match[1], match[2]
    is_part = int(left) < int(right) <= 100 and not right.startswith("0")
    if match["measure"] is None and is_part:
        return f" {say_fraction(left, right)} "
    # The slash is also the decimal sign: 3/5 درصد is three and a half.
    return f"{left}.{right}"


def _say_range(match: re.Match[str]) -> str:
    joint = " تا " if int(match[1]) < int(match[2]) else " "
    return f" {match[1]}{joint}{match[2]} "
