"""The pages: both languages have the same ones with the same code, every link leads somewhere, and Persian is right to left."""

import re

import pytest

from tests.support.doc_blocks import CODE, LANGUAGES, README, TAGS, list_pages, read_blocks
from tests.support.processes import ROOT

PAGES = [page for language in LANGUAGES for page in list_pages(language)]


def find_twin(page):
    """The Persian page of an English one."""
    return README["fa"] if page == README["en"] else page.replace("docs/en/", "docs/fa/")


def test_both_languages_have_the_same_pages():
    assert [find_twin(page) for page in list_pages("en")] == list_pages("fa")


@pytest.mark.parametrize("page", list_pages("en"))
def test_both_languages_show_the_same_code(page):
    twins = [
        [(block.language, block.tag, block.text) for block in read_blocks(each)] for each in (page, find_twin(page))
    ]
    assert twins[0] == twins[1]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_says_how_far_it_is_tested(page):
    for block in read_blocks(page):
        assert (block.tag in TAGS) == (block.language in CODE), f"{block}: {block.language} {block.tag}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in list_anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def list_anchors(text):
    """The names under which the headings of a page can be linked, and those given by hand."""
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- \u200c]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*plain, *re.findall(r'<a (?:id|name)="([^"]+)"', text)}


@pytest.mark.parametrize("page", list_pages("fa"))
def test_persian_prose_is_marked_right_to_left(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r'<div dir="rtl">.*?</div>', "", prose, flags=re.DOTALL)
    assert not re.search(r"[\u0600-\u06ff]", outside), f"{page}: {outside.strip()[:80]}"
