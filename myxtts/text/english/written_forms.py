"""English abbreviations, Roman numerals, web addresses and signs that XTTS' own cleaning leaves as they are."""

from __future__ import annotations

import re

from myxtts.text.number_words import say_integer, say_ordinal

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
