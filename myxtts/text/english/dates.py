"""English dates, times of day and years in words."""

from __future__ import annotations

import re

from num2words import num2words

from myxtts.text.number_words import say_integer, say_ordinal

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH_NUMBERS = {name[:3].lower(): number for number, name in enumerate(MONTHS, start=1)}

_SHORT_MONTHS = r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
# A capital is asked for: "may 5 people come" and "march 3 miles" are no dates.
_MONTH = rf"(?P<month>{'|'.join(MONTHS)}|(?:{_SHORT_MONTHS})\b\.?|{'|'.join(name.upper() for name in MONTHS)})"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>1[1-9]\d\d|20\d\d)"
_END = r"(?![\w/]|[-–.,:]\d)"

_MONTH_FIRST = re.compile(rf"\b{_MONTH} {_DAY}(?:,? {_YEAR})?{_END}")
_DAY_FIRST = re.compile(rf"(?<![\w./:,-])(?:[Tt]he )?{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?{_END}")
_MONTH_AND_YEAR = re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}{_END}")
_YEAR_FIRST = re.compile(rf"(?<![\w./:,-])(\d{{4}})([-/])(\d\d?)\2(\d\d?){_END}")
_YEAR_LAST = re.compile(rf"(?<![\w./:,-])(\d\d?)([-/])(\d\d?)\2(\d{{4}}){_END}")

_HALF_OF_DAY = r" ?(?P<half>[AaPp])(?:\.[Mm]\.|[Mm]\b)"
_TIME = re.compile(
    rf"(?<![\d:.,])(?P<hour>\d\d?):(?P<minute>[0-5]\d)(?P<second>:[0-5]\d)?(?![\d:]|[.,]\d)(?:{_HALF_OF_DAY})?"
)
_FULL_HOUR = re.compile(rf"(?<![\d:.,])(?P<hour>1[0-2]|0?[1-9]){_HALF_OF_DAY}")

_YEAR_RANGE = re.compile(r"(?<![\w$£€.,-])(1[1-9]\d\d|20\d\d) ?[-–] ?(1[1-9]\d\d|20\d\d)(?![\w%]|[-–.,]\d)")
_SINGLE_YEAR = re.compile(
    r"(?P<lead>\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Dd]uring|[Cc]irca|[Yy]ear) )(?P<year>1[1-9]\d\d|20\d\d)(?![\w%]|[-–.,:/]\d)"
)
# After these a year is told from a count by the end of its clause: "of about 1455," but not "of about 1455 people".
_YEAR_AT_END = re.compile(
    r"(?P<lead>\b(?:[Aa]bout|[Aa]round|[Bb]y|[Ff]rom|[Oo]f|[Tt]o|[Bb]efore|[Aa]fter|[Ee]arly|[Ll]ate|[Aa]nd|[Bb]etween) )"
    r"(?P<year>1[1-9]\d\d|20\d\d)(?=$|[.,;:!?)](?!\d))"
)
_DECADE = re.compile(r"(?<![\w$£€.,])(?:(?P<century>1[1-9]|20)|['’])?(?P<decade>[0-9]0)['’]?s\b")
_TENS = ("hundred", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def expand_dates(text: str) -> str:
    """The text with dates in words, among them 2021-05-17 and 5/17/2021 (month first, unless that is no month)."""
    text = _YEAR_FIRST.sub(lambda match: _say_date(match[1], match[3], match[4]) or match[0], text)
    text = _YEAR_LAST.sub(_say_year_last, text)
    text = _MONTH_FIRST.sub(_say_month_first, text)
    text = _DAY_FIRST.sub(_say_day_first, text)
    return _MONTH_AND_YEAR.sub(lambda match: f"{_name_month(match['month'])} {say_year(match['year'])}", text)


def expand_times(text: str) -> str:
    """The text with times of day in words, except plain 10:30, which XTTS reads as ten:thirty."""
    return _FULL_HOUR.sub(lambda match: _join_half(_say(match["hour"]), match), _TIME.sub(_say_time, text))


def expand_years(text: str) -> str:
    """The text with years and decades in words: since nineteen eighty-four, the nineties."""
    text = _DECADE.sub(_say_decade, text)
    text = _YEAR_RANGE.sub(lambda match: f"{say_year(match[1])} to {say_year(match[2])}", text)
    for pattern in (_SINGLE_YEAR, _YEAR_AT_END):
        text = pattern.sub(lambda match: match["lead"] + say_year(match["year"]), text)
    return text


def say_year(year: str) -> str:
    """A year of four digits as it is spoken: nineteen eighty-four."""
    spoken: str = num2words(int(year), lang="en", to="year")
    return spoken


def _say(digits: str) -> str:
    return say_integer(digits, "en")


def _name_month(written: str) -> str:
    return MONTHS[_MONTH_NUMBERS[written[:3].lower()] - 1]


def _say_day(day: str) -> str:
    return say_ordinal(day, "", "en")


def _say_month_first(match: re.Match[str]) -> str:
    year = f", {say_year(match['year'])}" if match["year"] else ""
    return f"{_name_month(match['month'])} {_say_day(match['day'])}{year}"


def _say_day_first(match: re.Match[str]) -> str:
    year = f" {say_year(match['year'])}" if match["year"] else ""
    return f"the {_say_day(match['day'])} of {_name_month(match['month'])}{year}"


def _say_year_last(match: re.Match[str]) -> str:
    month, day = match[1], match[3]
    if int(month) > 12:
        month, day = day, month
    return _say_date(match[4], month, day) or match[0]


def _say_date(year: str, month: str, day: str) -> str | None:
    if not (1100 <= int(year) < 2100 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{MONTHS[int(month) - 1]} {_say_day(day)}, {say_year(year)}"


def _say_time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 24 or (not match["half"] and not match["second"] and minute >= 10):
        return match[0]
    spoken = _say(match["hour"])
    if minute >= 10:
        spoken += f" {_say(match['minute'])}"
    elif minute:
        spoken += f" oh {_say(match['minute'])}"
    elif not match["half"] and not match["second"]:
        spoken += " o'clock" if 1 <= hour <= 12 else " hundred"
    if match["second"]:
        spoken += f" and {_say(match['second'][1:])} seconds"
    return _join_half(spoken, match)


def _join_half(spoken: str, match: re.Match[str]) -> str:
    if not match["half"]:
        return spoken
    # The last dot of "p.m." also ends the sentence, if the text ends with it.
    stop = "." if match[0].endswith(".") and match.end() == len(match.string.rstrip()) else ""
    return f"{spoken} {match['half'].lower()} m{stop}"


def _say_decade(match: re.Match[str]) -> str:
    tens = int(match["decade"]) // 10
    century = f"{_say(match['century'])} " if match["century"] else ""
    if match["century"] == "20" and not tens:
        return "two thousands"
    if not century and not tens:
        return match[0]
    word = _TENS[tens]
    return f"{century}{word.removesuffix('y')}{'ies' if word.endswith('y') else 's'}"
