"""The pages: both languages have the same ones with the same code, every link leads somewhere, and Persian is right to left."""

import html
import re
from collections import Counter

import pytest

from myxtts.monitoring.clock import Progress
from myxtts.monitoring.live_view import Picture, format_picture
from myxtts.units import UNKNOWN
from tests.monitoring.runs import make_train_row
from tests.support.doc_blocks import CODE, LANGUAGES, README, TAGS, list_pages, read_blocks
from tests.support.processes import ROOT

PAGES = [page for language in LANGUAGES for page in list_pages(language)]
BENCHMARKS = [str(each.relative_to(ROOT)) for each in sorted((ROOT / "docs" / "benchmarks").glob("*.md"))]
LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT MARK}"
STRAYS = (
    *("پرونده", "کلیپ", "نقطهٔ ذخیره", "زیان‌", "رمزگشا", "تولیدکننده", "فرایند", "درگاه", "پرامپت", "دیوار آتش"),
    *("پیکرهٔ نمونه", "ردیابی", "این‌که", "اینجا"),
)
"""Second words for ideas that have one already: فایل, قطعه, چک‌پوینت, loss, ..."""


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


@pytest.mark.parametrize("page", list_pages("en"))
def test_both_languages_say_the_same_section_by_section(page):
    ours, theirs = split_sections(page), split_sections(find_twin(page))
    assert len(ours) == len(theirs)
    for (title, text), (_, twin) in zip(ours, theirs, strict=True):
        assert count_table_rows(text) == count_table_rows(twin), f"{page}: {title}: rows of tables"
        assert count_codes(text) == count_codes(twin), f"{page}: {title}: names in code"


def split_sections(page):
    """The headings of a page, each with its prose; what stands before the first has the page's name."""
    parts = re.split(r"^#+ (.*)$", read_prose(page), flags=re.MULTILINE)
    return list(zip([page, *parts[1::2]], parts[::2], strict=True))


def read_prose(page):
    """A page without its fenced blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def count_table_rows(text):
    return len(re.findall(r"^\|", text, flags=re.MULTILINE))


def count_codes(text):
    return Counter(" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_says_how_far_it_is_tested(page):
    for block in read_blocks(page):
        assert (block.tag in TAGS) == (block.language in CODE), f"{block}: {block.language} {block.tag}"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", *BENCHMARKS])
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
    outside = re.sub(r'<div dir="rtl">.*?</div>', "", read_prose(page), flags=re.DOTALL)
    assert not re.search(r"[\u0600-\u06ff]", outside), f"{page}: {outside.strip()[:80]}"


@pytest.mark.parametrize("page", list_pages("fa"))
def test_code_in_persian_keeps_its_signs_at_their_ends(page):
    # Right to left, a sign at an end of a code has no direction of its own: `--mode auto` would read "mode auto--".
    prose = read_prose(page)
    for code in re.finditer(r"`([^`]+)`", prose):
        if not (code[1][0].isalnum() and code[1][-1].isalnum()):
            assert prose[code.start() - 1] == prose[code.end()] == LEFT_TO_RIGHT, f"{page}: {code[0]}"


@pytest.mark.parametrize("page", list_pages("fa"))
def test_persian_has_one_word_for_one_idea(page):
    assert [word for word in STRAYS if word in read_prose(page)] == []


LIVE_VIEW = "docs/pictures/live-view.svg"


def test_the_picture_of_the_live_view_shows_the_words_of_todays_view():
    assert all(f"]({LIVE_VIEW})" in (ROOT / page).read_text(encoding="utf-8") for page in README.values())
    row = make_train_row(54, memory=())
    today = " ".join(format_picture("gpt, isolated mode", Picture(row, Progress(54, 60, 100, 60, 0.95))))
    words = set(re.findall(r"[a-z]{4,}", today)) - {UNKNOWN}
    assert {"validation", "checkpoint", "waits", "memory", "ready", "clips"} <= words
    texts = re.findall(r"<text[^>]*>(.*?)</text>", (ROOT / LIVE_VIEW).read_text(encoding="utf-8"))
    missing = words - {word for text in texts for word in re.findall(r"[a-z]+", html.unescape(text))}
    assert not missing, "the live view has changed: run `python tools/make_pictures.py`"
