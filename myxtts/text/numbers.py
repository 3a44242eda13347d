"""Numbers in running text as words: the order of steps XTTS was trained with."""

from __future__ import annotations

import re
import unicodedata

from myxtts.text.number_words import say_decimal, say_integer, say_money, say_ordinal

_COMMA_GROUPS = re.compile(r"\b\d{1,3}(?:,\d{3})*(?:\.\d+)?\b")
_INDIAN_GROUPS = re.compile(r"\b\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d+)?\b")
_DOT_GROUPS = re.compile(r"\b\d{1,3}(?:\.\d{3})*(?:,\d+)?\b")
_GROUPS = {"en": (_COMMA_GROUPS, ","), "ru": (_COMMA_GROUPS, ","), "hi": (_INDIAN_GROUPS, ",")}
"""How thousands are marked, where it is not with dots."""

# Every pattern that starts with a run of digits starts only at its first one: tried from each digit in turn, a long run
# would take quadratic time.
_AMOUNT = r"[0-9.,]*[0-9]"
_CURRENCIES = {
    code: re.compile(rf"{sign}({_AMOUNT})|(?<![0-9.,])({_AMOUNT}){sign}")
    for code, sign in (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
}
_DECIMAL = re.compile(r"(?<![0-9])([0-9]+)[.,]([0-9]+)")
_INTEGER = re.compile(r"[0-9]+")

_ORDINAL_ENDINGS = {
    "en": "st|nd|rd|th",
    "es": "º|ª|er|o|a",
    "fr": "º|ª|er|re|e|ème",
    "de": r"st|nd|rd|th|º|ª|\.(?=\s|$)",
    "pt": "º|ª|o|a",
    "it": "º|°|ª|o|a|i|e",
    "pl": "º|ª|st|nd|rd|th",
    "ar": "ون|ين|ث|ر|ى",
    "cs": r"\.(?=\s|$)",
    "ru": "-й|-я|-е|-ое|-ье|-го",
    "nl": "de|ste|e",
    "tr": r"\.|inci|nci|uncu|üncü",
    "hu": r"\.|adik|edik|odik|ödik|ik",
    "ko": "번째|번|차|째",
    "hi": "st|nd|rd|th|वाँ|वां|वीं|वें",
}
_ORDINALS = {language: re.compile(rf"(?<![0-9])([0-9]+)({endings})") for language, endings in _ORDINAL_ENDINGS.items()}

FRACTION_SIGNS = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"

_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def write_ascii_digits(text: str) -> str:
    """The text with the decimal digits of every script (٣, ३, ３) as 0 to 9."""
    return _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def read_fraction_sign(sign: str) -> tuple[str, str]:
    """Numerator and denominator of one of `FRACTION_SIGNS`, as digits."""
    numerator, _, denominator = unicodedata.normalize("NFKC", sign).partition("\N{FRACTION SLASH}")
    return numerator, denominator


def expand_numbers(text: str, language: str) -> str:
    """The text with amounts of money, decimals, ordinals and integers as words."""
    groups, separator = _GROUPS.get(language, (_DOT_GROUPS, "."))
    text = groups.sub(lambda match: match[0].replace(separator, ""), text)
    text = _expand_money(text, language)
    # In Turkish the dot after a number makes it an ordinal, and XTTS has only heard it so.
    if language != "tr":
        text = _DECIMAL.sub(lambda match: say_decimal(match[1], match[2], language), text)
    text = _ORDINALS[language].sub(lambda match: say_ordinal(match[1], match[2], language), text)
    return _INTEGER.sub(lambda match: say_integer(match[0], language), text)


def _expand_money(text: str, language: str) -> str:
    for currency in _CURRENCIES:
        expanded = _expand_currency(text, currency, language)
        if expanded is None:
            # The reference stops at the first amount it cannot say and leaves this sign and the later ones as they
            # are: in "£3 и $20" each number is read with the word for the symbol in front of it.
            return text
        text = expanded
    return text


def _expand_currency(text: str, currency: str, language: str) -> str | None:
    pattern = _CURRENCIES[currency]
    spoken = {match.start(): _say_amount(match[1] or match[2], currency, language) for match in pattern.finditer(text)}
    words = {start: each for start, each in spoken.items() if each is not None}
    return pattern.sub(lambda match: words[match.start()], text) if len(words) == len(spoken) else None


def _say_amount(amount: str, currency: str, language: str) -> str | None:
    plain = amount.replace(",", ".")
    # More than one separator left: not an amount anybody can name.
    return say_money(float(plain), currency, language) if plain.count(".") <= 1 else None
