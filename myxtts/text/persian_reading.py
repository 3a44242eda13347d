"""Persian as it is read aloud: vowel signs that the writer or a table sets, Latin words and addresses, numbers as people say them."""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path

from myxtts.text.lexicon import Lexicon, read_lexicon
from myxtts.text.normalise import clean_text, resolve_language
from myxtts.text.persian import normalise_persian
from myxtts.text.persian_numbers import UNITS

_COLLOQUIAL = re.compile(
    r"(?<![\w\u200c])(?:تومن|اگه|دیگه|مگه|آره|یه|اون|اونا|اینا|چیه|کیه|چنده|بهش|واسه|خونه|نون|بریم|بیاین|داداش|مرسی|(?:او|نیو)مد(?:م|ی|ن|یم)?|"
    r"ن?می[\u200c ]?(?:خوام|خوای|خواد|خوایم|شه|رم|ری|ره|ریم|گم|گه|گن|دم|ده|دونم|دونی|تونم|تونی|مونه|کنه|کنن|رسه|رسم|ام|اد|آم|آد))(?![\w\u200c])"
)
"""Words by which a text is told to be in the spoken language."""
_LONGEST_ACRONYM = 5
_ADDRESS = re.compile(
    r"(?<![\w@.+-])(?:https?://)?(?:[a-z0-9_.+-]+@)?(?:[a-z0-9-]+\.)+[a-z]{2,}(?:/[\w/?=&%#+~.-]*\w)?/?(?![\w@])",
    re.ASCII | re.IGNORECASE,
)
_ADDRESS_PART = re.compile("[A-Za-z]+|[0-9]+|.")
_ADDRESS_SIGNS = {".": "دات", "@": "اَت", "/": "اسلش", "-": "خط تیره", "_": "آندرلاین", "+": "پلاس"}
_LATIN_WORD = re.compile(
    r"(?<=[\d°])( ?)[A-Za-z]+(?:/h)?|[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]+(?:['’][a-z]+)?"
)


def clean_with_signs(text: str, language: str) -> str:
    """What `clean_text` gives, but Persian as it is read aloud, with vowel signs: for a model that was trained with them."""
    return read_persian(text) if resolve_language(language) == "fa" else clean_text(text, language)


def read_persian(text: str) -> str:
    """Persian text in Persian letters alone, with the vowel signs of its writer, and those of our tables where it has none."""
    text = text.encode("utf-8", "ignore").decode("utf-8")
    text = _load("latin_words").apply(_ADDRESS.sub(_spell_address, text), "fa")
    is_colloquial = _COLLOQUIAL.search(text)
    text = normalise_persian(_LATIN_WORD.sub(_read_word, text), signs=True)
    text = _load("colloquial_numbers").apply(text, "fa") if is_colloquial else text
    return unicodedata.normalize("NFC", _load("persian_readings").apply(text, "fa"))


@functools.cache
def _load(name: str) -> Lexicon:
    return read_lexicon(Path(__file__).with_name(f"{name}.tsv"))


def _spell_address(match: re.Match[str]) -> str:
    address = re.sub("^https?://|/$", "", match[0], flags=re.IGNORECASE)
    parts = _ADDRESS_PART.findall(address)
    return " ".join(_ADDRESS_SIGNS.get(part, read_latin(part) if part.isalpha() else part) for part in parts)


def _read_word(match: re.Match[str]) -> str:
    # Units behind numbers are written out with them.
    is_unit = match[1] is not None and (match[0].strip().lower() in UNITS or match.string[match.start() - 1] == "°")
    return match[0] if is_unit else f" {read_latin(match[0].strip())} "


def read_latin(word: str) -> str:
    """A Latin word in Persian letters: as the table has it, by the names of its letters, or by its sounds."""
    plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode().replace("'", "")
    known = _load("latin_words").apply(plain, "fa")
    if known != plain:
        return known
    is_acronym = len(plain) <= _LONGEST_ACRONYM and plain.isupper()
    if is_acronym or set(plain.lower()).isdisjoint("aeiouy"):
        return _load("latin_letters").apply(" ".join(plain), "fa")
    # Without word boundaries, as in Chinese: the longest run of letters that has a sound, from the left.
    return _load("latin_sounds").apply(f"^{plain.lower()}$", "zh-cn").strip("^$")
