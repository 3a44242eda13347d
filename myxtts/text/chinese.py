"""Chinese text: numbers as characters, and every punctuation mark as the one pause XTTS knows in Chinese."""

from __future__ import annotations

import re
import string
import unicodedata

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
