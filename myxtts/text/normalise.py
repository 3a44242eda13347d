"""The way from a text as people write it to the words a model is trained on, by language."""

from __future__ import annotations

import functools
import importlib
import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

from myxtts.errors import MissingLanguagePackageError, UnsupportedLanguageError
from myxtts.text.english import expand_english
from myxtts.text.numbers import expand_numbers, write_ascii_digits
from myxtts.text.persian import normalise_persian

CHARACTER_LIMITS: Mapping[str, int] = {
    "en": 250, "es": 239, "fr": 273, "de": 253, "it": 213, "pt": 203, "pl": 224, "tr": 226, "ru": 182, "nl": 251, "cs": 186,
    "ar": 166, "zh-cn": 82, "hu": 224, "ko": 95, "ja": 71, "hi": 150,
    # Not a language of XTTS. Persian is written without its short vowels, as Arabic is: a character stands for as much
    # sound as an Arabic one, so Arabic's limit keeps a piece as short in seconds as the others are.
    "fa": 166,
}  # fmt: skip
"""Longest text in characters, as written, that XTTS speaks without losing its end."""


def resolve_language(language: str) -> str:
    """The code in the form tags have: lower case and without region, except `zh-cn`, which stands for all Chinese."""
    code = language.strip().lower().replace("_", "-").partition("-")[0]
    code = "zh-cn" if code == "zh" else code
    if code not in CHARACTER_LIMITS:
        raise UnsupportedLanguageError(
            f"A language must be one of {', '.join(CHARACTER_LIMITS)}, but is {language!r}. "
            "Give the code of the language the text is written in."
        )
    return code


def character_limit(language: str) -> int:
    """Longest text in characters, as written, that is spoken in one piece in this language."""
    return CHARACTER_LIMITS[resolve_language(language)]


_SYMBOL_WORDS: Mapping[str, tuple[str, ...]] = {
    # & @ % # $ £ °
    "en": ("and", "at", "percent", "hash", "dollar", "pound", "degree"),
    "es": ("y", "arroba", "por ciento", "numeral", "dolar", "libra", "grados"),
    "fr": ("et", "arobase", "pour cent", "dièse", "dollar", "livre", "degrés"),
    "de": ("und", "at", "prozent", "raute", "dollar", "pfund", "grad"),
    "it": ("e", "chiocciola", "per cento", "cancelletto", "dollaro", "sterlina", "gradi"),
    "pt": ("e", "arroba", "por cento", "cardinal", "dólar", "libra", "graus"),
    "pl": ("i", "małpa", "procent", "krzyżyk", "dolar", "funt", "stopnie"),
    "tr": ("ve", "at", "yüzde", "diyez", "dolar", "sterlin", "derece"),
    "ru": ("и", "собака", "процентов", "номер", "доллар", "фунт", "градус"),
    "nl": ("en", "bij", "procent", "hekje", "dollar", "pond", "graden"),
    "cs": ("a", "na", "procento", "křížek", "dolar", "libra", "stupně"),
    "ar": ("و", "على", "في المئة", "رقم", "دولار", "جنيه", "درجة"),
    "zh-cn": ("和", "在", "百分之", "号", "美元", "英镑", "度"),
    "hu": ("és", "kukac", "százalék", "kettőskereszt", "dollár", "font", "fok"),
    "ko": ("그리고", "에", "퍼센트", "번호", "달러", "파운드", "도"),
    "hi": ("और", "ऐट दी रेट", "प्रतिशत", "हैश", "डॉलर", "पाउंड", "डिग्री"),
}
_SYMBOLS = {
    language: str.maketrans({symbol: f" {word} " for symbol, word in zip("&@%#$£°", words, strict=True)})
    for language, words in _SYMBOL_WORDS.items()
}


def _romanise(text: str, code: str) -> str:
    """What XTTS reads instead of Chinese, Japanese and Korean; what is of another script stays as it is."""
    romanised: str
    if code == "zh-cn":
        # Pinyin with tone digits and no separators: ni3hao3.
        pypinyin = _import_package("pypinyin", "Chinese")
        return "".join(pypinyin.lazy_pinyin(text, style=pypinyin.Style.TONE3, neutral_tone_with_five=True))
    if code == "ja":
        # Hepburn romaji, words apart: konnichiha, sekai.
        romanised = _load_cutlet().romaji(text).lower()
    else:
        rule = _import_package("hangul_romanize.rule", "Korean")
        romanised = _import_package("hangul_romanize", "Korean").Transliter(rule.academic).translit(text)
    return romanised


@functools.cache
def _load_cutlet() -> Any:
    # Loading the dictionary takes far longer than reading a sentence.
    cutlet = _import_package("cutlet", "Japanese")
    try:
        return cutlet.Cutlet()
    except RuntimeError as error:  # MeCab finds no dictionary
        raise _make_error("unidic-lite", "Japanese") from error


def _import_package(name: str, language: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _make_error(error.name or name, language) from error


def _make_error(package: str, language: str) -> MissingLanguagePackageError:
    return MissingLanguagePackageError(
        f"{language} text needs the package {package}, which is not installed. "
        "Run: pip install -c constraints.txt '.[languages]' in the source folder of MyXTTS"
    )


DIGITS = "零一二三四五六七八九"
PLACES = ("", "十", "百", "千")
GROUPS = ("", "万", "亿", "兆", "京", "垓", "秭", "穰", "沟", "涧", "正", "载")
"""Names of the groups of four digits, from the right."""

# In front of a measure word, a large unit or money a run of digits is a count, and not a name or a telephone number.
_COUNTED = re.compile(
    "[多余几]?[亿万千百元块角毛分个只条张本件辆台架艘座间所家户名位人口头匹群双对副套瓶杯碗盘盒箱袋包桶罐"
    "斤两克吨公米厘毫升尺寸里平立度次遍回场顿趟天日周月年岁秒时小刻层楼页章节课首部篇幅封份支枝根棵朵片颗粒滴倍种]"
)
_YEAR = re.compile(r"(?<!\d)((?:19|20)\d{2}|[089]\d)(?=年)")
# Without the country's or the town's prefix a telephone number is read digit by digit for its length alone.
_TELEPHONE = re.compile(r"(?<![\d.])(?:\+?86[ -]?1\d{10}|0\d{2,3}-\d{7,8})(?![\d.])")
_FRACTION = re.compile(r"(?<!\d)(\d+)/(\d+)")
_PERCENTAGE = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)[%％]")
_MINUS = re.compile(r"(?<![\w.)%°-])[-−](?=\d)")
# A 2 between letters is a word of its own kind: b2b, o2o.
_NUMBER = re.compile(r"(?<![a-z])\d+(?:\.\d+)?|(?<=[a-z])(?!2[a-z])\d+(?:\.\d+)?")
_ASCII_MARKS = frozenset(string.punctuation)
_SHORTEST_NAME = 4
"""From this many digits on, an integer that counts nothing is read digit by digit."""


def expand_chinese(text: str) -> str:
    """The lower-case text with numbers as Chinese characters and punctuation as commas."""
    text = _YEAR.sub(lambda match: spell_digits(match[0]), text)
    text = _TELEPHONE.sub(lambda match: spell_digits(re.sub(r"\D", "", match[0])), text)
    text = _FRACTION.sub(lambda match: f"{say_cardinal(match[2])}分之{say_cardinal(match[1])}", text)
    text = _PERCENTAGE.sub(lambda match: f"百分之{_say_number(match[1])}", text)
    text = _MINUS.sub("负", text)
    text = _NUMBER.sub(_say_match, text)
    return "".join("," if _is_mark(character) else character for character in text)


def spell_digits(digits: str) -> str:
    """Each digit as a character: 二零二四."""
    return "".join(DIGITS[int(digit)] for digit in digits)


def say_cardinal(digits: str) -> str:
    """The number that a string of digits stands for: 一千零五."""
    if len(digits) > 1 and not digits.strip("0"):
        # The reference says nothing for 00 and 000, which it meets in 1,000.
        return ""
    if digits.startswith("0") or len(digits) > 4 * len(GROUPS):
        return spell_digits(digits)
    padded = digits.zfill(-(-len(digits) // 4) * 4)
    quads = [padded[i : i + 4] for i in range(0, len(padded), 4)]
    spoken = ""
    skipped = False
    for rank, quad in zip(reversed(range(len(quads))), quads, strict=True):
        if quad == "0000":
            skipped = True
            continue
        # Zeros between what is said, however many, are one 零.
        gap = bool(spoken) and (skipped or quad[0] == "0")
        spoken += _say_quad(quad, gap, names_group=rank > 0) + GROUPS[rank]
        skipped = False
    return spoken.removeprefix("一") if spoken.startswith("一十") else spoken


def _say_quad(quad: str, gap: bool, names_group: bool) -> str:
    spoken = ""
    for place, digit in zip(reversed(range(4)), quad, strict=True):
        if digit == "0":
            gap = gap or bool(spoken)
            continue
        # 二 turns into 两 in front of a hundred, a thousand and the name of a group, unless something smaller came first.
        is_pair = digit == "2" and not gap and (place >= 2 or (names_group and quad == "0002"))
        spoken += (DIGITS[0] if gap else "") + ("两" if is_pair else DIGITS[int(digit)]) + PLACES[place]
        gap = False
    return spoken


def _say_number(number: str) -> str:
    whole, _, fraction = number.partition(".")
    if not fraction:
        return say_cardinal(whole)
    return f"{say_cardinal(whole) or DIGITS[0]}点{spell_digits(fraction)}"


def _say_match(match: re.Match[str]) -> str:
    number = match[0]
    if len(number) >= _SHORTEST_NAME and "." not in number and not _COUNTED.match(match.string, match.end()):
        return spell_digits(number)
    return _say_number(number)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("P") or (unicodedata.normalize("NFKC", character) in _ASCII_MARKS)


ABBREVIATIONS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "mrs": "misess",  # sic: the spelling the published weights were trained with
        "mr": "mister", "dr": "doctor", "st": "saint", "co": "company", "jr": "junior", "maj": "major", "gen": "general",
        "drs": "doctors", "rev": "reverend", "lt": "lieutenant", "hon": "honorable", "sgt": "sergeant", "capt": "captain",
        "esq": "esquire", "ltd": "limited", "col": "colonel", "ft": "fort",
    },
    "es": {
        "sra": "señora", "sr": "señor", "dr": "doctor", "dra": "doctora", "st": "santo", "co": "compañía", "jr": "junior",
        "ltd": "limitada",
    },
    "fr": {
        "mme": "madame", "mr": "monsieur", "dr": "docteur", "st": "saint", "co": "compagnie", "jr": "junior", "ltd": "limitée",
    },
    "de": {"fr": "frau", "dr": "doktor", "st": "sankt", "co": "firma", "jr": "junior"},
    "pt": {
        "sra": "senhora", "sr": "senhor", "dr": "doutor", "dra": "doutora", "st": "santo", "co": "companhia", "jr": "júnior",
        "ltd": "limitada",
    },
    "it": {"sig": "signore", "dr": "dottore", "st": "santo", "co": "compagnia", "jr": "junior", "ltd": "limitata"},
    "pl": {"p": "pani", "m": "pan", "dr": "doktor", "sw": "święty", "jr": "junior"},
    "cs": {"dr": "doktor", "ing": "inženýr", "p": "pan"},
    "ru": {"г-жа": "госпожа", "г-н": "господин", "д-р": "доктор"},
    "nl": {"dhr": "de heer", "mevr": "mevrouw", "dr": "dokter", "jhr": "jonkheer"},
    "tr": {"b": "bay", "byk": "büyük", "dr": "doktor"},
    "hu": {"dr": "doktor", "b": "bácsi", "nőv": "nővér"},
}  # fmt: skip

# Russian contracts with a hyphen and writes no dot.
_ENDINGS = dict.fromkeys(ABBREVIATIONS, r"\.") | {"ru": r"\b"}

_PATTERNS = {
    language: re.compile(rf"\b({'|'.join(map(re.escape, words))}){_ENDINGS[language]}")
    for language, words in ABBREVIATIONS.items()
}


# str.lower turns İ into an i with a dot of its own, which no vocabulary has.
_TURKISH_CAPITALS = str.maketrans("İÖÜ", "iöü")
_ARABIC_NUMBER_SIGNS = str.maketrans("٫٬٪", ",.%")

# Composing would put Arabic vowel signs into another order than people type them in, and take Hindi letters apart.
_LEFT_UNCOMPOSED = frozenset({"ar", "hi"})


def clean_text(text: str, language: str) -> str:
    """The text as the model reads it: numbers, symbols and abbreviations in words, lower case, Latin where XTTS has it so.

    For the 17 languages of XTTS v2 this is the cleaning its weights were trained with.
    """
    code = resolve_language(language)
    expanded = expand_text(text, code)
    return _romanise(expanded, code) if code in ("zh-cn", "ko", "ja") else expanded


def expand_text(text: str, language: str) -> str:
    """The text in words, still in the script of its language. Japanese is left to its romaniser as it is."""
    code = resolve_language(language)
    # Half a surrogate pair, as broken JSON has it, is no character: the tokenizers library refuses the whole text.
    text = text.encode("utf-8", "ignore").decode("utf-8")
    if code == "fa":
        return normalise_persian(text)
    if code not in _LEFT_UNCOMPOSED:
        # Text from macOS often has letters and accents apart, which a vocabulary of whole letters does not know.
        text = unicodedata.normalize("NFC", text)
    if code == "ja":
        return text
    return _expand_words(write_ascii_digits(text.replace('"', "")), code)


def _expand_words(text: str, code: str) -> str:
    if code == "en":
        text = expand_english(text)
    elif code == "tr":
        text = text.translate(_TURKISH_CAPITALS)
    elif code == "ar":
        text = text.translate(_ARABIC_NUMBER_SIGNS)
    text = text.lower()
    text = expand_chinese(text) if code == "zh-cn" else expand_numbers(text, code)
    if code in ABBREVIATIONS:
        text = _PATTERNS[code].sub(lambda match: ABBREVIATIONS[code][match[1]], text)
    return " ".join(text.translate(_SYMBOLS[code]).split())
