"""The README's pictures: linked, whole, and of today's live view."""

import html
import re

import pytest

from myxtts.monitoring.clock import Progress
from myxtts.monitoring.live_view import Picture, format_picture
from myxtts.units import UNKNOWN
from tests.monitoring.runs import make_train_row
from tests.support.doc_blocks import README
from tests.support.processes import ROOT

PICTURES = ROOT / "docs" / "pictures"
LIVE_VIEW, PROFILE = "live-view.svg", "profile.png"


@pytest.mark.parametrize("page", README.values())
@pytest.mark.parametrize("name", [LIVE_VIEW, PROFILE])
def test_every_picture_is_there_and_shown_in_the_readme(page, name):
    assert (PICTURES / name).stat().st_size > 0
    assert re.search(rf"!\[[^\]]{{20,}}\]\(docs/pictures/{name}\)", (ROOT / page).read_text(encoding="utf-8")), name


def test_the_picture_of_the_live_view_loads_nothing_from_elsewhere():
    assert list_loaded((PICTURES / LIVE_VIEW).read_text(encoding="utf-8")) == []


def test_the_picture_of_the_live_view_shows_the_words_of_todays_view():
    row = make_train_row(54, memory=())
    today = " ".join(format_picture("gpt, isolated mode", Picture(row, Progress(54, 60, 100, 60, 0.95))))
    words = set(re.findall(r"[a-z]{4,}", today)) - {UNKNOWN}
    assert {"validation", "checkpoint", "waits", "memory", "ready", "clips"} <= words
    missing = words - set(re.findall(r"[a-z]+", read_words((PICTURES / LIVE_VIEW).read_text(encoding="utf-8"))))
    assert not missing, "the live view has changed: run `python tools/make_pictures.py`"


def read_words(picture):
    """The texts of an SVG picture, one per line."""
    return "\n".join(
        html.unescape(text).replace("\xa0", " ") for text in re.findall(r"<text[^>]*>(.*?)</text>", picture)
    )


def list_loaded(picture):
    """What an SVG picture asks a browser to fetch."""
    return re.findall(r"href|@import|<script|<image|url\([\"']?(?!#)[^)]*", picture)
