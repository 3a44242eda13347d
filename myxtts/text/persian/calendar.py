"""Persian dates and times of day in words."""

from __future__ import annotations

import re

from myxtts.text.persian.number_words import say_cardinal, say_ordinal

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
