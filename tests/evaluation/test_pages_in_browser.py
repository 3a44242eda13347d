"""The pages to listen to in a real browser: sounds that play, pictures that are there, and room on a phone."""

import numpy as np
import pytest
import soundfile

from myxtts.evaluation.page import format_page
from myxtts.monitoring.metrics import MetricsLog
from myxtts.reports.pages import name_sample, note_clip, write_listening_page
from tests.evaluation.builders import COPY, GAP, ORIGINAL, SPOKEN, make_evaluation, make_failure, make_sentence
from tests.monitoring.runs import make_rows
from tests.serving.browser import CHROMIUM, NO_CHROMIUM, open_tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

PLAYERS = "[...document.querySelectorAll('audio')]"
PICTURES = "[...document.querySelectorAll('img')]"


def write_evaluation_page(folder):
    """A page with everything that it can have on it."""
    heard = dict.fromkeys((ORIGINAL, COPY, SPOKEN), "the bat sat on the mat")
    sentences = [make_sentence(number, heard, folder, is_stopped=number > 0) for number in range(3)]
    failures = [make_failure("a_name_without_any_place_to_break_it_" * 3 + ".wav")]
    path = folder / "evaluation.html"
    path.write_text(format_page(make_evaluation(sentences, failures, [GAP]), folder, make_rows()), encoding="utf-8")
    return path


def write_run_page(folder):
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in make_rows():
            log.write(row)
    (folder / "samples").mkdir()
    for step in (10, 20):
        for is_free in (False, True):
            sound = np.random.default_rng(step + is_free).normal(0, 0.1, 5000)
            soundfile.write(folder / "samples" / name_sample(step, is_free=is_free), sound, 22050, subtype="PCM_16")
    soundfile.write(folder / "recording.flac", np.random.default_rng(3).normal(0, 0.1, 5000), 22050)
    note_clip(folder, "سلام دنیا", folder / "recording.flac")
    write_listening_page(folder, folder / "listen.html")
    return folder / "listen.html"


@pytest.fixture(scope="module")
def browser():
    with open_tab("about:blank") as tab:
        yield tab


@pytest.fixture(scope="module", params=[(write_evaluation_page, 9), (write_run_page, 5)], ids=["evaluation", "listen"])
def page(request, browser, tmp_path_factory):
    """A page in the browser, and how many sounds are on it."""
    write, sounds = request.param
    path = write(tmp_path_factory.mktemp("page"))
    browser.go(path.as_uri())
    browser.wait_for(f"location.pathname.endsWith({path.name!r}) && document.readyState === 'complete'")
    return browser, sounds


def test_every_sound_can_be_played_and_every_picture_is_drawn(page):
    tab, sounds = page
    tab.wait_for(f"{PLAYERS}.every(player => player.readyState >= 1)")
    durations = tab.evaluate(f"{PLAYERS}.map(player => player.duration)")
    assert len(durations) == sounds
    assert min(durations) > 0.15
    tab.evaluate("document.querySelector('audio').play()")
    tab.wait_for("document.querySelector('audio').currentTime > 0.05")
    assert tab.evaluate(f"{PICTURES}.filter(picture => picture.complete && picture.naturalWidth > 0).length") == sounds
    lines = tab.evaluate("[...document.querySelectorAll('svg polyline')].map(line => line.getTotalLength())")
    assert max(lines) > 100
    assert tab.complaints == []


@pytest.mark.parametrize("pixels", [400, 1200], ids=["phone", "desk"])
def test_nothing_is_wider_than_the_window(page, pixels):
    tab, _ = page
    tab.set_width(pixels)
    assert tab.evaluate("innerWidth") == pixels
    wide, room = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room
    # Too narrow to be played with is no better than too wide.
    assert tab.evaluate(f"Math.min(...{PLAYERS}.map(player => player.getBoundingClientRect().width))") > 200
