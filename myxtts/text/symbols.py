"""Symbols that are spoken as words, by language."""

from __future__ import annotations

from collections.abc import Mapping

SYMBOLS = "&@%#$£°"

_WORDS_IN_ORDER: Mapping[str, tuple[str, ...]] = {
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

_TABLES = {
    language: str.maketrans({symbol: f" {word} " for symbol, word in zip(SYMBOLS, words, strict=True)})
    for language, words in _WORDS_IN_ORDER.items()
}


def expand_symbols(text: str, language: str) -> str:
    """The text with `& @ % # $ £ °` as words, a space on each side of them."""
    return text.translate(_TABLES[language])
