"""Persian amounts, dates, fractions, ordinals, telephone numbers and every other number in words.

Each word put in has a space on both sides; spaces are tidied later."""

from __future__ import annotations

import re
from collections.abc import Callable

from num2words import num2words

from myxtts.text.numbers import FRACTION_SIGNS, read_fraction_sign

ZWNJ = "\u200c"
"""The half-space: parts of one word that are not joined in writing."""

ZERO = "صِفر"
_SIGNED = {"صفر": ZERO, "نه": "نُه", "ده": "دَه"}
"""Numbers that are written as other words are."""
LONGEST_NAMED = 15
"""Beyond it numbers have no name that everybody knows."""
_LONGEST_FRACTION = 3
"""Decimals up to this length are said as one number, longer ones digit by digit."""


def say_cardinal(digits: str) -> str:
    """The number that a string of digits 0 to 9 stands for; digit by digit where it has no name."""
    if len(digits.lstrip("0")) > LONGEST_NAMED:
        return spell_digits(digits)
    return " ".join(_SIGNED.get(word, word) for word in num2words(int(digits), lang="fa").split(" "))


def spell_digits(digits: str) -> str:
    return " ".join(map(say_cardinal, digits))


def say_grouped(digits: str) -> str:
    """A group out of a longer code as one number, its leading zeros said: صفر نهصد و دوازده."""
    significant = digits.lstrip("0")
    zeros = [ZERO] * (len(digits) - len(significant))
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


def _join_thousands(match: re.Match[str]) -> str:
    digits = re.sub(r"\D", "", match[0])
    # Too long for a run of digits to be taken for a count, but its separators say that it is one.
    return digits if len(digits) <= _LONGEST_COUNT else f" {say_cardinal(digits)} "


def _say_telephone(match: re.Match[str]) -> str:
    """In the groups it is written or usually said in."""
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


def _say_money(match: re.Match[str]) -> str:
    sign, number, scale = (match[1], match[2], match[3]) if match[1] else (match[6], match[4], match[5])
    unit, hundredth = _CURRENCIES[sign]
    whole, _, fraction = number.partition(".")
    if hundredth and len(fraction) == 2 and not scale:
        return f" {say_cardinal(whole)} {unit} و {say_cardinal(fraction)} {hundredth} "
    return f" {number} {scale or ''} {unit} "


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


JALALI_MONTHS = (
    *("فروردین", "اردیبهشت", "خرداد", "تیر", "مرداد", "شهریور"),
    *("مهر", "آبان", "آذر", "دی", "بهمن", "اسفند"),
)
GREGORIAN_MONTHS = (
    *("ژانویه", "فوریه", "مارس", "آوریل", "مه", "ژوئن"),
    *("ژوئیه", "اوت", "سپتامبر", "اکتبر", "نوامبر", "دسامبر"),
)

_START = r"(?<![\w/:.-])"
_END = r"(?![\w/:]|[.-]\d)"
_YEAR_FIRST = re.compile(rf"{_START}(\d{{4}})([/.-])(\d\d?)\2(\d\d?){_END}")
_DAY_FIRST = re.compile(rf"{_START}(\d\d?)([/.-])(\d\d?)\2(\d{{4}}){_END}")
# Two digits of a year come first in Iran, and are told from a day by their size.
_SHORT_YEAR_FIRST = re.compile(rf"{_START}(3[2-9]|[4-9]\d)/(\d\d?)/(\d\d?){_END}")
_YEAR_AND_MONTH = re.compile(rf"{_START}(\d{{4}})/(0[1-9]|1[0-2]){_END}")
_TIME = re.compile(r"(?<![\w:.])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?![\w:]|\.\d)")


def _say_time(match: re.Match[str]) -> str:
    """14:30 is چهارده و سی دقیقه."""
    hour, minute, second = match.groups()
    spoken = say_cardinal(hour)
    if int(minute):
        spoken += f" و {say_cardinal(minute)} دقیقه"
    if second and int(second):
        spoken += f" و {say_cardinal(second)} ثانیه"
    return f" {spoken} "


def _say_date(year: str, month: str, day: str) -> str | None:
    named = _say_month(year, month)
    return f" {say_ordinal(day)}{named}" if named and 1 <= int(day) <= 31 else None


def _say_month(year: str, month: str) -> str | None:
    months = _pick_months(int(year))
    if months is None or not 1 <= int(month) <= 12:
        return None
    return f" {months[int(month) - 1]} {say_cardinal(year)} "


def _pick_months(year: int) -> tuple[str, ...] | None:
    # The years people write about: the two calendars do not overlap in them.
    if year < 100 or 1200 <= year < 1500:
        return JALALI_MONTHS
    return GREGORIAN_MONTHS if 1500 <= year < 2200 else None


_BEFORE_NUMBER = {"صص": "صفحات", "ص": "صفحه", "ج": "جلد", "ش": "شماره"}
_AFTER_YEAR = {"م": "میلادی", "ش": "شمسی", "ق": "قمری"}
_ABBREVIATION_BEFORE = re.compile(rf"(?<![\w{ZWNJ}])({'|'.join(_BEFORE_NUMBER)}) ?[.:]? ?(?=\d)")
_ABBREVIATION_AFTER = re.compile(rf"(?<!\d)(\d{{3,4}}) ?({'|'.join(_AFTER_YEAR)})\.(?![\w{ZWNJ}])")

UNITS = {
    "km/h": "کیلومتر بر ساعت", "km": "کیلومتر", "cm": f"سانتی{ZWNJ}متر", "mm": f"میلی{ZWNJ}متر", "kg": "کیلوگرم",
    "mg": f"میلی{ZWNJ}گرم", "ml": f"میلی{ZWNJ}لیتر", "gb": "گیگابایت", "mb": "مگابایت", "tb": "ترابایت", "ghz": "گیگاهرتز",
    "mhz": "مگاهرتز", "hz": "هرتز",
}  # fmt: skip
_UNIT = re.compile(rf"(?<=\d) ?({'|'.join(UNITS)})(?![\w/])")
_DEGREE_OF_SCALE = re.compile(r"° ?([cf])(?!\w)")
_SCALES_OF_DEGREE = {"c": f"درجه سانتی{ZWNJ}گراد", "f": "درجه فارنهایت"}
_NUMBER_SIGN = re.compile(r"# ?(?=\d)")


def _say_era(match: re.Match[str]) -> str:
    stop = "" if match.string[match.end() :].strip() else "."
    return f"{match[1]} {_AFTER_YEAR[match[2]]}{stop} "


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # From the most specific way of writing to the least.
    (_ABBREVIATION_BEFORE, lambda match: f"{_BEFORE_NUMBER[match[1]]} "),
    (_ABBREVIATION_AFTER, _say_era),
    (_YEAR_FIRST, lambda match: _say_date(match[1], match[3], match[4]) or match[0]),
    (_DAY_FIRST, lambda match: _say_date(match[4], match[3], match[1]) or match[0]),
    (_SHORT_YEAR_FIRST, lambda match: _say_date(match[1], match[2], match[3]) or match[0]),
    (_YEAR_AND_MONTH, lambda match: _say_month(match[1], match[2]) or match[0]),
    (_TIME, _say_time),
    (_CARD, lambda match: _say_groups(_cut(re.sub(r"\D", "", match[0]), 4))),
    (_TELEPHONE, _say_telephone),
    (_GROUPED, _join_thousands),
    (_DOT_GROUPED, _join_thousands),
    (_UNIT, lambda match: f" {UNITS[match[1]]} "),
    (_DEGREE_OF_SCALE, lambda match: f" {_SCALES_OF_DEGREE[match[1]]} "),
    (_NUMBER_SIGN, "شماره "),
    (_MONEY, _say_money),
    (_FRACTION_SIGN, _say_fraction_sign),
    (_SLASH, _say_slash),
    (_PERCENTAGE, lambda match: f" {match[1] or match[2]} درصد "),
    (_ORDINAL, lambda match: f" {say_ordinal(match[1])}{match[2] or ''} "),
    (_RANGE, _say_range),
    (_HYPHEN_BY_WORD, " "),
    (_SIGN, lambda match: " مثبت " if match[1] == "+" else " منفی "),
    (_CHAIN, lambda match: " نقطه ".join(f" {say_grouped(part)} " for part in match[0].split("."))),
    (_DECIMAL, lambda match: f" {say_decimal(match[1], match[2])} "),
    (_INTEGER, lambda match: f" {_say_run(match[0])} "),
)


def expand_numbers(text: str) -> str:
    """The lower-case text, its digits 0 to 9, with every number in words, and what is written beside one only."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return text
