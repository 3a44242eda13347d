"""The reference pages are what the code says."""

import re

import pytest

from myxtts.cli.main import COMMANDS, make_parser
from myxtts.tuning.selfcheck import CHECKS
from tests.support.processes import ROOT
from tools.write_reference import PAGES, write_page


@pytest.mark.parametrize("language", PAGES)
def test_the_page_is_not_behind_the_code(language):
    page = (ROOT / "docs" / language / "reference.md").read_text(encoding="utf-8")
    assert page == write_page(PAGES[language]), "run `python tools/write_reference.py`"


@pytest.mark.parametrize("words", PAGES.values(), ids=PAGES)
def test_every_flag_of_every_parser_is_on_the_page(words):
    page = write_page(words)
    for name in COMMANDS:
        parser = make_parser(name, "myxtts")
        flags = {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"}
        assert {flag for flag in flags if not re.search(rf"`{flag}[ `]", page)} == set(), name


def test_every_variable_that_is_read_has_its_line():
    read = {
        name for path in (ROOT / "myxtts").rglob("*.py") for name in re.findall(r"\bMYXTTS_[A-Z_]+", path.read_text())
    }
    for words in PAGES.values():
        assert set(words.variable_rows) == read


@pytest.mark.parametrize("language", PAGES)
def test_every_check_is_explained_and_none_that_does_not_exist(language):
    page = (ROOT / "docs" / language / "your-hardware.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| .*\|$", page, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert named == [check.name for check in CHECKS]
