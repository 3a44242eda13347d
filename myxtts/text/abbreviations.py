"""Abbreviations that are spoken in full, by language."""

from __future__ import annotations

import re
from collections.abc import Mapping

ABBREVIATIONS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "mrs": "misess",  # sic: the spelling the published weights were trained with
        "mr": "mister",
        "dr": "doctor",
        "st": "saint",
        "co": "company",
        "jr": "junior",
        "maj": "major",
        "gen": "general",
        "drs": "doctors",
        "rev": "reverend",
        "lt": "lieutenant",
        "hon": "honorable",
        "sgt": "sergeant",
        "capt": "captain",
        "esq": "esquire",
        "ltd": "limited",
        "col": "colonel",
        "ft": "fort",
    },
    "es": {
        "sra": "señora",
        "sr": "señor",
        "dr": "doctor",
        "dra": "doctora",
        "st": "santo",
        "co": "compañía",
        "jr": "junior",
        "ltd": "limitada",
    },
    "fr": {
        "mme": "madame",
        "mr": "monsieur",
        "dr": "docteur",
        "st": "saint",
        "co": "compagnie",
        "jr": "junior",
        "ltd": "limitée",
    },
    "de": {"fr": "frau", "dr": "doktor", "st": "sankt", "co": "firma", "jr": "junior"},
    "pt": {
        "sra": "senhora",
        "sr": "senhor",
        "dr": "doutor",
        "dra": "doutora",
        "st": "santo",
        "co": "companhia",
        "jr": "júnior",
        "ltd": "limitada",
    },
    "it": {
        "sig": "signore",
        "dr": "dottore",
        "st": "santo",
        "co": "compagnia",
        "jr": "junior",
        "ltd": "limitata",
    },
    "pl": {"p": "pani", "m": "pan", "dr": "doktor", "sw": "święty", "jr": "junior"},
    "cs": {"dr": "doktor", "ing": "inženýr", "p": "pan"},
    "ru": {"г-жа": "госпожа", "г-н": "господин", "д-р": "доктор"},
    "nl": {"dhr": "de heer", "mevr": "mevrouw", "dr": "dokter", "jhr": "jonkheer"},
    "tr": {"b": "bay", "byk": "büyük", "dr": "doktor"},
    "hu": {"dr": "doktor", "b": "bácsi", "nőv": "nővér"},
}

# Russian contracts with a hyphen and writes no dot.
_ENDINGS = dict.fromkeys(ABBREVIATIONS, r"\.") | {"ru": r"\b"}

_PATTERNS = {
    language: re.compile(rf"\b({'|'.join(map(re.escape, words))}){_ENDINGS[language]}")
    for language, words in ABBREVIATIONS.items()
}


def expand_abbreviations(text: str, language: str) -> str:
    """The lower-case text with the language's abbreviations, and the dot that marks them, as full words."""
    pattern = _PATTERNS.get(language)
    if pattern is None:
        return text
    words = ABBREVIATIONS[language]
    return pattern.sub(lambda match: words[match[1]], text)
