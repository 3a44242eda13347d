"""English beyond XTTS' own cleaning: dates, times, years, large amounts, units, telephone numbers, addresses of the web.

Every rule turns one way of writing into words and leaves alone what the cleaning of XTTS already reads well, so that the
two can follow each other. The text still has its capitals here: "May 5" is a date, "may 5" is not."""

from __future__ import annotations

import re

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
    text = _OTHER_MONEY.sub(lambda match: f"{_say_quantity(match[2])} {_pick(match[1], _is_one(match[2]))}", text)
    return _CENTS.sub(lambda match: f"{_say_quantity(match[1])} {'cent' if _is_one(match[1]) else 'cents'}", text)


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
    text = _VERSION.sub(lambda match: " point ".join(_say_quantity(part) for part in match[0].split(".")), text)
    return _LEADING_ZERO.sub(lambda match: spell_digits(match[0], "en"), text)


def expand_ranges(text: str) -> str:
    """The text with 10-12 as ten to twelve, and a minus before a number as a word."""

    def say(match: re.Match[str]) -> str:
        # A hyphen between falling numbers is a score or a name: 3-2, 747-400.
        is_range = match[2] == "–" or int(match[1]) < int(match[3])
        return f"{match[1]} to {match[3]}" if is_range else match[0]

    return _MINUS.sub("minus ", _RANGE.sub(say, text))


def _say_quantity(number: str) -> str:
    whole, _, fraction = number.replace(",", "").partition(".")
    return say_decimal(whole, fraction, "en") if fraction else say_integer(whole, "en")


def _is_one(number: str) -> bool:
    return number == "1"


def _pick(sign: str, is_one: bool, hundredths: bool = False) -> str:
    return _CURRENCIES[sign][2 * hundredths + (not is_one)]


def _say_scaled_money(match: re.Match[str]) -> str:
    scale = match[3].lower() if match[3] else _SCALES[match[4].lower()]
    return f"{_say_quantity(match[2])} {scale} {_pick(match[1], is_one=False)}"


def _say_hundredths(match: re.Match[str]) -> str:
    count = match[2].lstrip("0")
    return f"{_say_quantity(count)} {_pick(match[1], _is_one(count), hundredths=True)}" if count else match[0]


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


ENGLISH_ABBREVIATIONS = {
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "vs.": "versus",
    "approx.": "approximately",
    "prof.": "professor",
    "ms.": "miss",
    "sr.": "senior",
    "inc.": "incorporated",
    "corp.": "corporation",
    "dept.": "department",
    "gov.": "governor",
    "sen.": "senator",
    "mt.": "mount",
    "ave.": "avenue",
    "blvd.": "boulevard",
    "rd.": "road",
    "a.m.": "a m",
    "p.m.": "p m",
}
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


def expand_web_addresses(text: str) -> str:
    """The text with mail and web addresses as they are read aloud: info at example dot com."""
    text = _MAIL_ADDRESS.sub(lambda match: match[0].translate(_ADDRESS_SIGNS), text)
    return _WEB_ADDRESS.sub(lambda match: match["address"].translate(_ADDRESS_SIGNS), text)


def expand_titles(text: str) -> str:
    """The text with English abbreviations in full, and letters with dots (U.S.) as letters."""
    text = _NUMERO.sub("number ", text)
    text = _STREET.sub(lambda match: f"{match[1]} street{_keep_stop(match)}", text)
    text = _ABBREVIATION.sub(lambda match: ENGLISH_ABBREVIATIONS[match[0].lower()] + _keep_stop(match), text)
    return _INITIALS.sub(lambda match: " ".join(match[0].replace(".", "")) + _keep_stop(match), text)


def expand_roman_numerals(text: str) -> str:
    """The text with the Roman numerals of chapters, wars and rulers in words."""

    def say_part(match: re.Match[str]) -> str:
        number = _read_roman(match[2])
        return f"{match[1]} {say_integer(number, 'en')}" if number else match[0]

    def say_ruler(match: re.Match[str]) -> str:
        number = _read_roman(match[2])
        return f"{match[1]} the {say_ordinal(number, '', 'en')}" if number else match[0]

    return _ROMAN_RULER.sub(say_ruler, _ROMAN_PART.sub(say_part, text))


def expand_signs(text: str) -> str:
    """The text with signs of arithmetic in words."""
    return _ABOUT.sub("about ", text).translate(_SIGNS)


def _keep_stop(match: re.Match[str]) -> str:
    # The dot of an abbreviation also ends the sentence, if the text ends with it.
    return "." if match.end() == len(match.string.rstrip()) else ""


def _read_roman(numeral: str) -> str | None:
    if not _ROMAN_NUMBER.fullmatch(numeral):
        return None
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    return str(sum(-value if value < max(values[i:]) else value for i, value in enumerate(values)))


_STEPS = (
    # From the most specific way of writing to the least: 2021-05-17 is a date before it is a range or a telephone number.
    expand_web_addresses,
    expand_dates,
    expand_times,
    expand_years,
    expand_telephones,
    expand_money,
    expand_codes,
    expand_fractions,
    expand_units,
    expand_ranges,
    expand_roman_numerals,
    expand_titles,
    expand_signs,
)


def expand_english(text: str) -> str:
    """The text with what XTTS' own cleaning would misread in words. Its case is kept where nothing was changed."""
    for step in _STEPS:
        text = step(text)
    return text
