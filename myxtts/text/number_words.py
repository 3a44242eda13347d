"""A number in words, for the languages that num2words serves and for those it leaves half done.

num2words is right for the numbers of everyday text and is what XTTS was trained with. Beyond that it gives up in many
ways (sixteen digits in Turkish, an ordinal of three digits in Korean, four decimals in Hungarian): then a plainer reading
takes its place, down to digit by digit, so that every number is spoken.
"""

from __future__ import annotations

from num2words import num2words

from myxtts.text import czech, hindi

POINT_WORDS = {
    "en": "point",
    "es": "punto",
    "fr": "virgule",
    "de": "Komma",
    "it": "virgola",
    "pt": "vírgula",
    "pl": "przecinek",
    "tr": "virgül",
    "ru": "запятая",
    "nl": "komma",
    "cs": "celá",
    "ar": "فاصلة",
    "hu": "egész",
    "ko": "점",
    "hi": hindi.POINT,
}
"""Between the digits of a decimal that has to be read digit by digit."""

# Between an amount and its hundredths in num2words' own sentences.
_AND_WORDS = {"es": " con ", "fr": " et ", "de": " und ", "pt": " e ", "it": " e "}

# What num2words raises for a number, a currency or a form it has no words for.
_NO_WORDS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)

# No converter names a longer number, and Python refuses to read one of 4300 digits.
_LONGEST_NAMED = 306
# A float keeps this many decimal digits; a longer decimal would be spoken with other digits than were written.
_LONGEST_EXACT = 15


def say_integer(digits: str, language: str) -> str:
    """The number that a string of digits 0 to 9 stands for."""
    spoken = None
    if language == "hi":
        spoken = hindi.say_cardinal(int(digits)) if len(digits) <= _LONGEST_EXACT else None
    elif len(digits) <= _LONGEST_NAMED:
        spoken = _ask_num2words(int(digits), language)
    return spoken or spell_digits(digits, language)


def spell_digits(digits: str, language: str) -> str:
    """Each digit of a string of digits 0 to 9 as a word of its own."""
    words = {digit: say_integer(digit, language) for digit in set(digits)}
    return " ".join(words[digit] for digit in digits)


def say_decimal(whole: str, fraction: str, language: str) -> str:
    """The number written as two strings of digits with a decimal separator between them."""
    if language != "hi" and len(whole) + len(fraction) <= _LONGEST_EXACT:
        spoken = _ask_num2words(float(f"{whole}.{fraction}"), language)
        if spoken:
            return spoken
    return f"{say_integer(whole, language)} {POINT_WORDS[language]} {spell_digits(fraction, language)}"


def say_ordinal(digits: str, ending: str, language: str) -> str:
    """The ordinal of a number; where there is no word for it, the plain number with the ending it was written with."""
    spoken = None
    if len(digits) <= _LONGEST_EXACT:
        value = int(digits)
        if language == "hi":
            spoken = hindi.say_ordinal(value)
        elif language != "cs":
            spoken = _ask_num2words(value, language, to="ordinal")
        elif value < 10**6:
            spoken = czech.say_ordinal(value, lambda part: say_integer(str(part), "cs"))
    return spoken or say_integer(digits, language) + ending


def say_money(amount: float, currency: str, language: str) -> str | None:
    """An amount of USD, EUR or GBP, without "zero cents"; None where the language has no words for the currency."""
    if language == "hi":
        return hindi.say_money(amount, currency) if amount < 10**_LONGEST_EXACT else None
    spoken = _ask_num2words(amount, language, to="currency", currency=currency)
    if spoken and amount.is_integer():
        main, separator, hundredths = spoken.rpartition(_AND_WORDS.get(language, ", "))
        # Only the hundredths may go: the last "e" of "vinte e um euros" stands inside the amount itself.
        if separator and hundredths.startswith(say_integer("0", language)):
            return main
    return spoken


def _ask_num2words(value: float, language: str, **form: str) -> str | None:
    try:
        spoken: str = num2words(value, lang=language, **form)
    except _NO_WORDS:
        return None
    # Some converters answer with nothing, or with digits, instead of raising.
    return spoken if spoken.strip() and not any(character.isdigit() for character in spoken) else None
