"""Persian punctuation, spaces and half-spaces."""

from __future__ import annotations

import re

from myxtts.text.persian.letters import LETTERS, VOWEL_SIGNS, ZWNJ

_LETTER = f"[{LETTERS}{VOWEL_SIGNS}]"

_MARKS = str.maketrans(
    {
        ",": "،",
        ";": "؛",
        "?": "؟",
        "٫": ".",
        "٬": "،",
        "۔": ".",
        **dict.fromkeys("“„‟‹", "«"),
        **dict.fromkeys("”›", "»"),
        **dict.fromkeys("‘’‛", "'"),
        **dict.fromkeys("[{", "("),
        **dict.fromkeys("]}", ")"),
        **dict.fromkeys("‐‑", "-"),
        **dict.fromkeys("‒–—―−ー", " - "),
    }
)
_QUOTED = re.compile('"([^"]*)"')
# Only Latin words have an apostrophe.
_STRAY_APOSTROPHE = re.compile("(?<![a-z])'|'(?![a-z])")

_LOOSE_VOWEL_SIGN = re.compile(f"(?<![{LETTERS}{VOWEL_SIGNS}])[{VOWEL_SIGNS}]+")
_LOOSE_HALF_SPACE = re.compile(f"(?<!{_LETTER}){ZWNJ}+|{ZWNJ}+(?!{_LETTER})")
_HALF_SPACES = re.compile(f"{ZWNJ}{{2,}}")
_SPACE_BEFORE_MARK = re.compile(r" +(?=[،؛؟.!:»)…])")
_SPACE_AFTER_OPENING = re.compile(r"(?<=[«(]) +")
_ELLIPSIS = re.compile(r"\.{3,}|\.*…[.…]*")
_REPEATED_MARK = re.compile(r"([،؛؟.!:])\1+")
_MARK_WITHOUT_SPACE = re.compile(r"(?<=[،؛؟!:…»)])(?=[^\W\d_]|[«(])")
_STOP_WITHOUT_SPACE = re.compile(rf"(?:(?<={_LETTER}\.)|(?<=[»)]\.))(?={_LETTER})")
_OPENING_WITHOUT_SPACE = re.compile(r"(?<=[\w.،؛؟!:…»)])(?=[«(])")
_DASH = re.compile(r" -+ ?|-+ | ?-{2,} ?")

_WORD_START = rf"(?<![\w{ZWNJ}])"
_WORD_END = rf"(?![\w{ZWNJ}])"
_VERB_PREFIX = re.compile(rf"{_WORD_START}(ن?می) (?={_LETTER}{{2}})")
# Endings that are words of their own only rarely, so that joining them seldom goes wrong.
_PLURAL = "ها(?:ی|یی|یم|یت|یش|یمان|یتان|یشان)?"
_ENDING = re.compile(rf"(?<={_LETTER}{{2}}) ({_PLURAL}|تر(?:ین|ی)?){_WORD_END}")
_PERFECT_ENDING = re.compile(rf"(?<={_LETTER}ه) (ام|ایم|اید|اند){_WORD_END}")


def unify_marks(text: str) -> str:
    """The text with Persian punctuation: ، ؛ ؟ « »."""
    text = _QUOTED.sub(r"«\1»", text).replace('"', "")
    return _STRAY_APOSTROPHE.sub("", text.translate(_MARKS))


def tidy_spaces(text: str) -> str:
    """The text with single spaces, half-spaces only inside words, and marks next to the word they belong to."""
    text = _LOOSE_VOWEL_SIGN.sub("", text)
    text = _HALF_SPACES.sub(ZWNJ, _LOOSE_HALF_SPACE.sub(" ", text))
    text = _DASH.sub(" - ", text)
    text = " ".join(text.split())
    text = _SPACE_AFTER_OPENING.sub("", _SPACE_BEFORE_MARK.sub("", text))
    text = _REPEATED_MARK.sub(r"\1", _ELLIPSIS.sub("…", text))
    text = _MARK_WITHOUT_SPACE.sub(" ", text)
    text = _STOP_WITHOUT_SPACE.sub(" ", text)
    return _OPENING_WITHOUT_SPACE.sub(" ", text)


def join_half_spaces(text: str) -> str:
    """The text with می شود, کتاب ها and رفته اند joined by half-spaces."""
    text = _VERB_PREFIX.sub(rf"\1{ZWNJ}", text)
    text = _ENDING.sub(rf"{ZWNJ}\1", text)
    return _PERFECT_ENDING.sub(rf"{ZWNJ}\1", text)
