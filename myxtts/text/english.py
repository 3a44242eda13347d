"""English beyond XTTS' own cleaning: dates, times, years, large amounts, units, telephone numbers, addresses of the web.

Every rule turns one way of writing into words and leaves alone what the cleaning of XTTS already reads well, so that the
two can follow each other. The text still has its capitals here: "May 5" is a date, "may 5" is not."""

from __future__ import annotations

import re
from collections.abc import Callable

from num2words import num2words

from myxtts.text.numbers import FRACTION_SIGNS, read_fraction_sign, say_decimal, say_integer, say_ordinal, spell_digits

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


def say_year(year: str) -> str:
    """A year of four digits as it is spoken: nineteen eighty-four."""
    spoken: str = num2words(int(year), lang="en", to="year")
    return spoken


def _say(digits: str) -> str:
    return say_integer(digits, "en")


def _say_ordinal(digits: str) -> str:
    return say_ordinal(digits, "", "en")


def _name_month(match: re.Match[str]) -> str:
    return MONTHS[_MONTH_NUMBERS[match["month"][:3].lower()] - 1]


def _say_month_first(match: re.Match[str]) -> str:
    year = f", {say_year(match['year'])}" if match["year"] else ""
    return f"{_name_month(match)} {_say_ordinal(match['day'])}{year}"


def _say_day_first(match: re.Match[str]) -> str:
    year = f" {say_year(match['year'])}" if match["year"] else ""
    return f"the {_say_ordinal(match['day'])} of {_name_month(match)}{year}"


def _say_date(match: re.Match[str]) -> str:
    """2021-05-17, or 5/17/2021: month first, unless that is no month."""
    year, month, day = match[1], match[3], match[4]
    if len(year) < 4:
        month, day, year = year, month, day
        if int(month) > 12:
            month, day = day, month
    if not (1100 <= int(year) < 2100 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return match[0]
    return f"{MONTHS[int(month) - 1]} {_say_ordinal(day)}, {say_year(year)}"


def _say_time(match: re.Match[str]) -> str:
    """Times of day, except plain 10:30, which XTTS reads as ten:thirty."""
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
    return f"{spoken} {match['half'].lower()} m{_keep_stop(match) if match[0].endswith('.') else ''}"


def _keep_stop(match: re.Match[str]) -> str:
    # The dot of an abbreviation also ends the sentence, if the text ends with it.
    return "." if match.end() == len(match.string.rstrip()) else ""


def _say_decade(match: re.Match[str]) -> str:
    tens = int(match["decade"]) // 10
    century = f"{_say(match['century'])} " if match["century"] else ""
    if match["century"] == "20" and not tens:
        return "two thousands"
    if not century and not tens:
        return match[0]
    word = _TENS[tens]
    return f"{century}{word.removesuffix('y')}{'ies' if word.endswith('y') else 's'}"


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
    "km/h": "kilometer per hour", "kph": "kilometer per hour", "mph": "mile per hour", "km": "kilometer", "cm": "centimeter",
    "mm": "millimeter", "kg": "kilogram", "mg": "milligram", "ml": "milliliter", "lbs": "pound", "lb": "pound", "oz": "ounce",
    "ft": "foot", "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz", "hz": "hertz", "kb": "kilobyte", "mb": "megabyte",
    "gb": "gigabyte", "tb": "terabyte", "°c": "degree celsius", "°f": "degree fahrenheit",
}  # fmt: skip
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


def _say_quantity(number: str) -> str:
    whole, _, fraction = number.replace(",", "").partition(".")
    return say_decimal(whole, fraction, "en") if fraction else _say(whole)


def _name_currency(sign: str, number: str, hundredths: bool = False) -> str:
    return _CURRENCIES[sign][2 * hundredths + (number != "1")]


def _say_scaled_money(match: re.Match[str]) -> str:
    scale = match[3].lower() if match[3] else _SCALES[match[4].lower()]
    return f"{_say_quantity(match[2])} {scale} {_name_currency(match[1], '')}"


def _say_hundredths(match: re.Match[str]) -> str:
    count = match[2].lstrip("0")
    return f"{_say_quantity(count)} {_name_currency(match[1], count, hundredths=True)}" if count else match[0]


def _say_unit(match: re.Match[str]) -> str:
    unit, _, rest = _UNITS[match[2].lower()].partition(" ")
    if match[1] != "1":
        unit = "feet" if unit == "foot" else unit if unit.endswith("hertz") else f"{unit}s"
    return f"{match[1]} {unit} {rest}".rstrip()


def _say_written_fraction(match: re.Match[str]) -> str:
    whole, numerator, denominator = match.groups()
    return _say_fraction(whole, numerator, denominator) if int(numerator) < int(denominator) else match[0]


def _say_fraction(whole: str | None, numerator: str, denominator: str) -> str:
    part = _NAMED_PARTS.get(denominator) or _say_ordinal(denominator)
    part += "" if numerator == "1" else "s"
    if whole is None:
        return f"{_say(numerator)} {part}"
    count = "a" if numerator == "1" and denominator in _NAMED_PARTS else _say(numerator)
    return f"{_say(whole)} and {count} {part}"


def _say_telephone(match: re.Match[str]) -> str:
    """Digit by digit, a pause between the groups."""
    plus = "plus " if match["international"] else ""
    return plus + ", ".join(spell_digits(group, "en") for group in re.findall(r"\d+", match[0]))


def _say_range(match: re.Match[str]) -> str:
    # A hyphen between falling numbers is a score or a name: 3-2, 747-400.
    is_range = match[2] == "–" or int(match[1]) < int(match[3])
    return f"{match[1]} to {match[3]}" if is_range else match[0]


ENGLISH_ABBREVIATIONS = {
    "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus", "approx.": "approximately",
    "prof.": "professor", "ms.": "miss", "sr.": "senior", "inc.": "incorporated", "corp.": "corporation", "dept.": "department",
    "gov.": "governor", "sen.": "senator", "mt.": "mount", "ave.": "avenue", "blvd.": "boulevard", "rd.": "road", "a.m.": "a m",
    "p.m.": "p m",
}  # fmt: skip
_ABBREVIATION = re.compile(
    rf"(?<![\w.])({'|'.join(re.escape(short) for short in ENGLISH_ABBREVIATIONS)})(?!\w)", re.IGNORECASE | re.ASCII
)
_NUMERO = re.compile(r"\bNo\. ?(?=\d)")
_STREET = re.compile(r"\b([A-Z][a-z]+) St\.(?=\s*(?:$|[,;:!?)]|[a-z]))")
_INITIALS = re.compile(r"(?<![\w.])((?:[A-Z]\.){2,})(?!\w)")

_PARTS = "Chapter|Part|Act|Scene|Volume|Book|Section|Article|Appendix|Phase|Type|War|Title|Super Bowl"
_RULERS = (
    "Henry|Louis|Charles|George|Edward|Elizabeth|James|William|Richard|Philip|Napoleon|Nicholas|Alexander|Frederick|"
    "Catherine|Peter|Francis|Ferdinand|Leopold|Pius|Benedict|John Paul|Innocent|Gregory|Clement|Urban|Leo|Ramses"
)
_ROMAN_PART = re.compile(rf"\b({_PARTS}) ([IVXL]+)\b(?!['’.]\w)")
# "Charles I" stays: more often a person is about to speak.
_ROMAN_RULER = re.compile(rf"\b({_RULERS}) (?!I\b)([IVX]+)\b")
_ROMAN_NUMBER = re.compile(r"(?:X{1,3}|XL|L)?(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}

_MAIL_ADDRESS = re.compile(r"(?<![\w.@+-])[\w+-]+(?:\.[\w+-]+)*@[\w-]+(?:\.[\w-]+)+", re.ASCII)
_WEB_ADDRESS = re.compile(
    r"(?<![\w.@/-])(?:https?://)?(?P<address>"
    r"(?:www\.[\w-]+(?:\.[\w-]+)+|[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io))\b(?:/[\w/.~-]*\w)?)/?",
    re.ASCII | re.IGNORECASE,
)
_ADDRESS_SIGNS = str.maketrans(
    {".": " dot ", "@": " at ", "/": " slash ", "-": " dash ", "_": " underscore ", "+": " plus ", "~": " tilde "}
)

_ABOUT = re.compile(r"~ ?(?=[$£€]?\d)")
_SIGNS = str.maketrans(
    {"+": " plus ", "=": " equals ", "×": " times ", "÷": " divided by ", "±": " plus or minus ", "¢": " cents "}
)


def _say_roman(match: re.Match[str]) -> str:
    """The Roman numeral of a chapter or a war as a number, that of a ruler as an ordinal."""
    if not _ROMAN_NUMBER.fullmatch(match[2]):
        return match[0]
    values = [_ROMAN_VALUES[letter] for letter in match[2]]
    number = str(sum(-value if value < max(values[i:]) else value for i, value in enumerate(values)))
    return f"{match[1]} the {_say_ordinal(number)}" if match.re is _ROMAN_RULER else f"{match[1]} {_say(number)}"


_BESIDE_DIGITS = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=(?!(?:st|nd|rd|th|s|e)\b)[A-Za-z])")
"""Between letters and digits, where XTTS would join the number's words to them: "btwelve". As the reference has it only in 5e."""

_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # From the most specific way of writing to the least: 2021-05-17 is a date before it is a range or a telephone number.
    (_MAIL_ADDRESS, lambda match: match[0].translate(_ADDRESS_SIGNS)),
    (_WEB_ADDRESS, lambda match: match["address"].translate(_ADDRESS_SIGNS)),
    (_YEAR_FIRST, _say_date),
    (_YEAR_LAST, _say_date),
    (_MONTH_FIRST, _say_month_first),
    (_DAY_FIRST, _say_day_first),
    (_MONTH_AND_YEAR, lambda match: f"{_name_month(match)} {say_year(match['year'])}"),
    (_TIME, _say_time),
    (_FULL_HOUR, lambda match: _join_half(_say(match["hour"]), match)),
    (_DECADE, _say_decade),
    (_YEAR_RANGE, lambda match: f"{say_year(match[1])} to {say_year(match[2])}"),
    (_SINGLE_YEAR, lambda match: match["lead"] + say_year(match["year"])),
    (_YEAR_AT_END, lambda match: match["lead"] + say_year(match["year"])),
    (_TELEPHONE, _say_telephone),
    (_SCALED_MONEY, _say_scaled_money),
    (_HUNDREDTHS, _say_hundredths),
    (_OTHER_MONEY, lambda match: f"{_say_quantity(match[2])} {_name_currency(match[1], match[2])}"),
    (_CENTS, lambda match: f"{_say_quantity(match[1])} {_name_currency('$', match[1], hundredths=True)}"),
    (_VERSION, lambda match: " point ".join(_say_quantity(part) for part in match[0].split("."))),
    (_LEADING_ZERO, lambda match: spell_digits(match[0], "en")),
    (_FRACTION_SIGN, lambda match: _say_fraction(match[1], *read_fraction_sign(match[2]))),
    (_FRACTION, _say_written_fraction),
    (_UNIT, _say_unit),
    (_RANGE, _say_range),
    (_MINUS, "minus "),
    (_ROMAN_PART, _say_roman),
    (_ROMAN_RULER, _say_roman),
    (_BESIDE_DIGITS, " "),
    (_NUMERO, "number "),
    (_STREET, lambda match: f"{match[1]} street{_keep_stop(match)}"),
    (_ABBREVIATION, lambda match: ENGLISH_ABBREVIATIONS[match[0].lower()] + _keep_stop(match)),
    (_INITIALS, lambda match: " ".join(match[0].replace(".", "")) + _keep_stop(match)),
    (_ABOUT, "about "),
)


def expand_english(text: str) -> str:
    """The text with what XTTS' own cleaning would misread in words. Its case is kept where nothing was changed."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return text.translate(_SIGNS)
