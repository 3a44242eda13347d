"""The page about testing on one's own cards explains the checks of the program, all of them and no others."""

import re

import pytest

from myxtts.tuning.selfcheck import CHECKS
from tests.support.doc_blocks import LANGUAGES
from tests.support.processes import ROOT


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_check_is_explained_and_none_that_does_not_exist(language):
    page = (ROOT / "docs" / language / "your-hardware.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| .*\|$", page, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert named == [check.name for check in CHECKS]
