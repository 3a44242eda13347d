"""The page about speaking: its figures are the program's."""

import re

import pytest

from myxtts.cli import serve
from myxtts.inference.pieces import MOST_CHARACTERS
from myxtts.serving.sound_formats import FORMATS
from myxtts.serving.speech_order import FIELDS
from tests.support.processes import ROOT

PAGES = {language: (ROOT / "docs" / language / "speaking.md").read_text(encoding="utf-8") for language in ("en", "fa")}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_fields_formats_and_limits_are_the_programs(page):
    for name in (*FIELDS.keys() - {"model", "stream_format"}, *FORMATS):
        assert f"`{name}`" in page, name
    for flag, (_, default, _) in serve.LIMIT_FLAGS.items():
        assert re.search(rf"`--{flag.replace('_', '-')}` \(\u200f?{default}\)", page), flag
    digits = str.maketrans("۰۱۲۳۴۵۶۷۸۹٬", "0123456789,")
    assert f"{MOST_CHARACTERS:,}" in page.translate(digits)


def test_the_defaults_of_the_flags_are_those_of_the_server():
    from myxtts.serving.limits import ServingLimits

    for field, default, _ in serve.LIMIT_FLAGS.values():
        assert getattr(ServingLimits(), field) == default
