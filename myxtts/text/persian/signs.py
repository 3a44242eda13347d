"""Signs and units of measure inside Persian text in words."""

from __future__ import annotations

import re

from myxtts.text.persian.letters import ZWNJ

_UNITS = {
    "km/h": "کیلومتر بر ساعت",
    "km": "کیلومتر",
    "cm": f"سانتی{ZWNJ}متر",
    "mm": f"میلی{ZWNJ}متر",
    "kg": "کیلوگرم",
    "mg": f"میلی{ZWNJ}گرم",
    "ml": f"میلی{ZWNJ}لیتر",
    "gb": "گیگابایت",
    "mb": "مگابایت",
    "tb": "ترابایت",
    "ghz": "گیگاهرتز",
    "mhz": "مگاهرتز",
    "hz": "هرتز",
}
_UNIT = re.compile(rf"(?<=\d) ?({'|'.join(_UNITS)})(?![\w/])")
_DEGREE_OF_SCALE = re.compile(r"° ?([cf])(?!\w)")
_SCALES_OF_DEGREE = {"c": f"درجه سانتی{ZWNJ}گراد", "f": "درجه فارنهایت"}
_NUMBER_SIGN = re.compile(r"# ?(?=\d)")

_SIGNS = str.maketrans(
    {
        "&": " و ",
        "@": " ات ",
        "%": " درصد ",
        "‰": " در هزار ",
        "#": " هشتگ ",
        "№": " شماره ",
        "+": f" به{ZWNJ}علاوه ",
        "=": " مساوی ",
        "×": " ضرب در ",
        "÷": " تقسیم بر ",
        "±": " مثبت منفی ",
        "°": " درجه ",
        "℃": f" درجه سانتی{ZWNJ}گراد ",
        "℉": " درجه فارنهایت ",
        "²": " به توان دو ",
        "³": " به توان سه ",
        "$": " دلار ",
        "€": " یورو ",
        "£": " پوند ",
        "¥": " ین ",
        "₹": " روپیه ",
        **dict.fromkeys("_/\\|<>*~^`•·", " "),
    }
)


def expand_units(text: str) -> str:
    """The lower-case text with units behind numbers, and the number sign before one, in words."""
    text = _UNIT.sub(lambda match: f" {_UNITS[match[1]]} ", text)
    text = _DEGREE_OF_SCALE.sub(lambda match: f" {_SCALES_OF_DEGREE[match[1]]} ", text)
    return _NUMBER_SIGN.sub("شماره ", text)


def expand_signs(text: str) -> str:
    """The text without signs: those with a name in words, the others as spaces."""
    return text.translate(_SIGNS)
