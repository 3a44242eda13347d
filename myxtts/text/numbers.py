"""Numbers in running text as words: the order of steps XTTS was trained with. Czech and Hindi have words of their own here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from num2words import num2words

UNDER_TWENTY = (
    *("nultý", "první", "druhý", "třetí", "čtvrtý", "pátý", "šestý", "sedmý", "osmý", "devátý"),
    *("desátý", "jedenáctý", "dvanáctý", "třináctý", "čtrnáctý", "patnáctý"),
    *("šestnáctý", "sedmnáctý", "osmnáctý", "devatenáctý"),
)
TENS = ("dvacátý", "třicátý", "čtyřicátý", "padesátý", "šedesátý", "sedmdesátý", "osmdesátý", "devadesátý")
HUNDREDS = ("stý", "dvoustý", "třístý", "čtyřstý", "pětistý", "šestistý", "sedmistý", "osmistý", "devítistý")


def say_czech_ordinal(value: int, say_cardinal: Callable[[int], str]) -> str:
    """The masculine ordinal of a number below a million; `say_cardinal` gives the words in front of the ordinal ones."""
    if value >= 1000:
        thousands, rest = divmod(value, 1000)
        if rest:
            return f"{say_cardinal(thousands * 1000)} {say_czech_ordinal(rest, say_cardinal)}"
        return "tisící" if thousands == 1 else f"{say_cardinal(thousands)} tisící"
    if value >= 100:
        hundreds, rest = divmod(value, 100)
        if rest:
            return f"{say_cardinal(hundreds * 100)} {say_czech_ordinal(rest, say_cardinal)}"
        return HUNDREDS[hundreds - 1]
    if value >= 20:
        tens, rest = divmod(value, 10)
        return f"{TENS[tens - 2]} {UNDER_TWENTY[rest]}" if rest else TENS[tens - 2]
    return UNDER_TWENTY[value]


_ROWS_OF_TEN = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ",
    "दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस",
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस",
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस",
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास",
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ",
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर",
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी",
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी",
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे",
)
CARDINALS = tuple(word for row in _ROWS_OF_TEN for word in row.split())
SCALES = (
    # From the thousand on, Hindi counts in steps of a hundred.
    *((10**17, "शंख"), (10**15, "पद्म"), (10**13, "नील"), (10**11, "खरब"), (10**9, "अरब")),
    *((10**7, "करोड़"), (10**5, "लाख"), (10**3, "हज़ार"), (10**2, "सौ")),
)
CEILING = 10**19
"""The first number without a name of its own."""
ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}
CURRENCIES = {"USD": ("डॉलर", "सेंट"), "EUR": ("यूरो", "सेंट"), "GBP": ("पाउंड", "पेंस")}
POINT = "दशमलव"


def say_cardinal(value: int) -> str:
    """A number from 0 up to, but not including, `CEILING` in words."""
    assert 0 <= value < CEILING, value
    if value < 100:
        return CARDINALS[value]
    words = []
    for scale, name in SCALES:
        count, value = divmod(value, scale)
        if count:
            words.append(f"{say_cardinal(count)} {name}")
    if value:
        words.append(CARDINALS[value])
    return " ".join(words)


def say_hindi_ordinal(value: int) -> str:
    """The masculine ordinal: पहला, दूसरा, ... पच्चीसवाँ."""
    return ORDINALS.get(value) or f"{say_cardinal(value)}वाँ"


def say_hindi_money(amount: float, currency: str) -> str:
    """An amount with the names of the currency and, where there are any, of its hundredths."""
    whole, hundredths = divmod(round(amount * 100), 100)
    unit, subunit = CURRENCIES[currency]
    if not hundredths:
        return f"{say_cardinal(whole)} {unit}"
    return f"{say_cardinal(whole)} {unit} {say_cardinal(hundredths)} {subunit}"


POINT_WORDS = {
    "en": "point", "es": "punto", "fr": "virgule", "de": "Komma", "it": "virgola", "pt": "vírgula", "pl": "przecinek",
    "tr": "virgül", "ru": "запятая", "nl": "komma", "cs": "celá", "ar": "فاصلة", "hu": "egész", "ko": "점", "hi": POINT,
}  # fmt: skip
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
        spoken = say_cardinal(int(digits)) if len(digits) <= _LONGEST_EXACT else None
    elif len(digits) <= _LONGEST_NAMED:
        spoken = _ask_num2words(int(digits), language)
    return spoken or spell_digits(digits, language)


def spell_digits(digits: str, language: str) -> str:
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
            spoken = say_hindi_ordinal(value)
        elif language != "cs":
            spoken = _ask_num2words(value, language, to="ordinal")
        elif value < 10**6:
            spoken = say_czech_ordinal(value, lambda part: say_integer(str(part), "cs"))
    return spoken or say_integer(digits, language) + ending


def say_money(amount: float, currency: str, language: str) -> str | None:
    """An amount of USD, EUR or GBP, without "zero cents"; None where the language has no words for the currency."""
    if language == "hi":
        return say_hindi_money(amount, currency) if amount < 10**_LONGEST_EXACT else None
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
