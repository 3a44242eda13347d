"""Chinese numbers and punctuation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.normalise import DIGITS, GROUPS, PLACES, clean_text, expand_text, say_cardinal


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("0", "零"), ("2", "二"), ("10", "十"), ("12", "十二"), ("20", "二十"), ("105", "一百零五"), ("110", "一百一十"),
        ("200", "两百"), ("2022", "两千零二十二"), ("10005", "一万零五"), ("10200", "一万零二百"), ("20000", "两万"),
        ("100000", "十万"), ("100005000", "一亿零五千"), ("10005000", "一千万五千"), ("22222", "两万两千两百二十二"),
        ("000", ""), ("007", "零零七"),
    ],
)  # fmt: skip
def test_cardinals(digits, expected):
    assert say_cardinal(digits) == expected


def read_chinese(text: str) -> int:
    total = group = digit = 0
    for character in text.replace("两", "二").replace("零", ""):
        if character in DIGITS:
            digit = DIGITS.index(character)
        elif character in PLACES:
            group += (digit or 1) * 10 ** PLACES.index(character)
            digit = 0
        else:
            total += (group + digit) * 10 ** (4 * GROUPS.index(character))
            group = digit = 0
    return total + group + digit


@settings(deadline=None)
@given(st.integers(0, 10**48 - 1))
def test_cardinals_can_be_read_back(value):
    assert read_chinese(say_cardinal(str(value))) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023年5月17日", "二零二三年五月十七日"),
        ("1850年", "一千八百五十年"),
        ("1500个人", "一千五百个人"),
        ("编号1500", "编号一五零零"),
        ("1500人", "一千五百人"),
        ("1234.5", "一千两百三十四点五"),
        ("50%和３／４", "百分之五十和四分之三"),
        ("+86 13812345678", "八六一三八一二三四五六七八"),
        ("010-12345678", "零一零一二三四五六七八"),
        ("-5度", "负五度"),
        ("B2B和P2P", "b2b和p2p"),
        ("5块5", "五块五"),
        ("“你好”……", ",你好,,,"),
    ],
)
def test_numbers_and_marks(text, expected):
    text = text.replace("／", "/")
    assert expand_text(text, "zh") == expected


def test_pinyin_has_tone_digits_and_no_separators():
    assert clean_text("我的50个苹果", "zh-cn") == "wo3de5wu3shi2ge4ping2guo3"
