"""Persian amounts, percentages, fractions, ordinals, telephone numbers and every other number in words.

The text comes with digits 0 to 9. Each word put in has a space on both sides; spaces are tidied later."""

from __future__ import annotations

import re

from myxtts.text.numbers import FRACTION_SIGNS, read_fraction_sign
from myxtts.text.persian_letters import ZWNJ

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


def expand_dates(text: str) -> str:
    """The text, its digits 0 to 9, with dates in words: 1402/05/17 is هفدهم مرداد هزار و چهارصد و دو."""
    text = _YEAR_FIRST.sub(lambda match: _say_date(match[1], match[3], match[4]) or match[0], text)
    text = _DAY_FIRST.sub(lambda match: _say_date(match[4], match[3], match[1]) or match[0], text)
    text = _SHORT_YEAR_FIRST.sub(lambda match: _say_date(match[1], match[2], match[3]) or match[0], text)
    return _YEAR_AND_MONTH.sub(lambda match: _say_month(match[1], match[2]) or match[0], text)


def expand_times(text: str) -> str:
    """The text, its digits 0 to 9, with times of day in words: 14:30 is چهارده و سی دقیقه."""

    def say(match: re.Match[str]) -> str:
        hour, minute, second = match.groups()
        spoken = say_cardinal(hour)
        if int(minute):
            spoken += f" و {say_cardinal(minute)} دقیقه"
        if second and int(second):
            spoken += f" و {say_cardinal(second)} ثانیه"
        return f" {spoken} "

    return _TIME.sub(say, text)


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
