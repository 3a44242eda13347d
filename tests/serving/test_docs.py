"""The page about speaking: its commands are commands, its figures are the program's, and both languages show the same."""

import re
import shlex

import pytest

from myxtts.cli import serve, synthesize
from myxtts.inference.pieces import MOST_CHARACTERS
from myxtts.serving.sound_formats import FORMATS
from myxtts.serving.speech_order import FIELDS
from tests.support.processes import ROOT

PAGES = {language: (ROOT / "docs" / language / "speaking.md").read_text(encoding="utf-8") for language in ("en", "fa")}
BLOCKS = {language: re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL) for language, page in PAGES.items()}


def test_both_languages_have_the_same_code_blocks():
    assert BLOCKS["en"] == BLOCKS["fa"]


@pytest.mark.parametrize(("command", "module"), [("serve", serve), ("synthesize", synthesize)])
def test_every_command_parses(command, module):
    lines = [line for kind, text in BLOCKS["en"] if kind == "bash" for line in text.splitlines()]
    found = [shlex.split(line.partition("|")[0]) for line in lines if line.startswith(f"myxtts {command} ")]
    assert found
    for words in found:
        module.build_parser(command).parse_all(words[2:])


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
