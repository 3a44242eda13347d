"""The README's picture is of today's live view. That it is there and linked, the test of all links shows."""

import html
import re

from myxtts.monitoring.clock import Progress
from myxtts.monitoring.live_view import Picture, format_picture
from myxtts.units import UNKNOWN
from tests.monitoring.runs import make_train_row
from tests.support.doc_blocks import README
from tests.support.processes import ROOT

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
