"""Mending a corpus in a real browser where things go wrong or late: answers, saves, the end of what was loaded, keys and focus."""

import errno
import os
import threading

import pytest

from myxtts.recordings.book import read_book
from myxtts.studio import corpora
from tests.serving.browser import CHROMIUM, NO_CHROMIUM
from tests.studio.hosting import host_studio
from tests.studio.material import write_book_of
from tests.studio.visiting import press, visit

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

CURRENT = "document.querySelector('.clip.current')"
PLAYER = "document.querySelector('#clip-player')"


def name_clip(number):
    return f"document.querySelector('[title=clip_{number:05}]').closest('.clip')"


@pytest.fixture
def studio(tmp_path):
    with host_studio(tmp_path / "workspace") as (client, studio):
        yield client, studio


@pytest.fixture
def mending(studio):
    """A page with five clips that are kept; the first is chosen."""
    client, hosted = studio
    folder = write_book_of(hosted.workspace.corpora / "mine", 5, doubtful=0)
    with visit(client.origin, "/corpora/mine") as tab:
        press(tab, "j")
        press(tab, "k")
        yield tab, folder
        assert [each for each in tab.complaints if "507" not in str(each)] == []


@pytest.fixture
def gate(monkeypatch):
    """Holds every answer to a change back until it is opened."""
    opened, write = threading.Event(), corpora.write_corpus

    def wait(*arguments):
        opened.wait()
        write(*arguments)

    monkeypatch.setattr(corpora, "write_corpus", wait)
    yield opened
    opened.set()


def type_text(tab, text):
    press(tab, "e")
    press(tab, "Backspace")
    tab.call("Input.insertText", text=text)


def test_a_late_answer_changes_neither_what_is_chosen_nor_what_is_typed(mending, gate):
    tab, folder = mending
    press(tab, "x")
    press(tab, "j")
    press(tab, "x")
    press(tab, "j")
    type_text(tab, "Half a")
    gate.set()
    tab.wait_for(
        "document.querySelectorAll('.clip.dropped').length === 2 && /^3 of/.test(document.querySelector('#counts').textContent)"
    )
    assert tab.evaluate(f"{CURRENT} === {name_clip(2)}")
    assert tab.evaluate("document.activeElement.value") == "Half a"
    tab.call("Input.insertText", text=" text.")
    press(tab, "Enter")
    tab.wait_for(f"{name_clip(2)}.querySelector('.told').textContent === 'saved'")
    clips = read_book(folder).clips
    assert [clip.kept for clip in clips] == [False, False, True, True, True]
    assert clips[2].text == "Half a text."
    assert clips[3].text == "This is sentence 3."


def test_changes_of_one_clip_are_made_in_their_order(mending, gate):
    tab, folder = mending
    # Of answers: what the page shows after one of them it shows after another, too.
    answers = f"performance.getEntriesByName(new URL({CURRENT}.dataset.url, location).href).length"
    for key in "xax":
        press(tab, key)
    gate.set()
    tab.wait_for(f"{answers} === 3 && document.querySelector('.clip').matches('.dropped')")
    assert tab.evaluate("document.querySelector('[data-do=drop]').ariaPressed") == "true"
    press(tab, "a")
    tab.wait_for(f"{answers} === 4 && !document.querySelector('.clip').matches('.dropped')")
    assert read_book(folder).clips[0].kept


def test_a_save_that_failed_is_sent_again(mending, monkeypatch):
    tab, folder = mending
    write = corpora.write_corpus

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpora, "write_corpus", fail)
    type_text(tab, "Mended.")
    press(tab, "Enter")
    tab.wait_for("document.querySelector('.clip .told.bad')?.textContent.includes('is full')")
    monkeypatch.setattr(corpora, "write_corpus", write)
    press(tab, "e")
    press(tab, "Enter")
    tab.wait_for("document.querySelector('.clip .told').textContent === 'saved'")
    assert read_book(folder).clips[0].text == "Mended."


def test_keys_go_on_where_what_was_loaded_ends_and_nothing_hides_the_clip(studio):
    client, hosted = studio
    write_book_of(hosted.workspace.corpora / "mine", 200, doubtful=0)
    with visit(client.origin, "/corpora/mine") as tab:
        for _ in range(70):
            press(tab, "j")
        tab.wait_for(f"{CURRENT}?.querySelector('.play').title === 'clip_00070'")
        assert tab.evaluate(
            "new Set([...document.querySelectorAll('.clip')].map(each => each.dataset.url)).size === document.querySelectorAll('.clip').length"
        )
        for _ in range(40):
            press(tab, "k")
            assert tab.evaluate(
                f"{CURRENT}.getBoundingClientRect().top >= document.querySelector('.top').getBoundingClientRect().bottom"
            )
        assert tab.evaluate(f"{CURRENT} === {name_clip(30)}")
        assert tab.complaints == []


def test_more_clips_are_asked_for_again_where_the_studio_did_not_answer(tmp_path):
    with host_studio(tmp_path / "workspace") as (client, hosted):
        write_book_of(hosted.workspace.corpora / "mine", 100)
        browser = visit(client.origin, "/corpora/mine")
        tab = browser.__enter__()
    try:
        tab.evaluate("scrollTo(0, document.body.scrollHeight)")
        tab.wait_for("document.querySelector('#lost').textContent.includes('does not answer')")
        with host_studio(tmp_path / "workspace", port=client.port):
            tab.wait_for("document.querySelectorAll('.clip').length === 100")
            assert tab.evaluate("document.querySelector('#lost').textContent") == ""
    finally:
        browser.__exit__(None, None, None)


def test_a_focused_button_keeps_its_own_keys_and_other_keys_go_on_from_it(mending):
    tab, folder = mending
    tab.evaluate("document.querySelector('.clip [data-do=drop]').focus()")
    press(tab, " ")
    tab.wait_for("document.querySelector('.clip').matches('.dropped')")
    assert tab.evaluate(f"{PLAYER}.paused && document.activeElement.dataset.do") == "drop"
    press(tab, "j")
    press(tab, " ")
    tab.wait_for(f"!{PLAYER}.paused && document.querySelector('.clip.playing') === {name_clip(1)}")
    # After the mouse the keys are those of the clip.
    tab.click(".clip [data-do=keep]")
    tab.wait_for("!document.querySelector('.clip').matches('.dropped')")
    assert tab.evaluate("document.activeElement === document.querySelector('.clip')")
    assert read_book(folder).clips[0].kept


def test_keys_are_those_of_the_same_place_on_a_persian_keyboard_and_none_with_control(mending):
    tab, _ = mending
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="ت", code="KeyJ", text="ت")
    assert tab.evaluate(f"{CURRENT} === {name_clip(1)}")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="j", code="KeyJ", modifiers=2)
    assert tab.evaluate(f"{CURRENT} === {name_clip(1)}")


def test_a_clip_is_heard_from_where_its_wave_is_touched_and_by_arrows(mending):
    tab, _ = mending
    tab.wait_for("document.querySelector('.wave').complete")
    tab.click(".clip .wave")
    tab.wait_for(f"{PLAYER}.currentTime >= 0.5")
    tab.wait_for("parseFloat(document.querySelector('.clip').style.getPropertyValue('--at')) >= 50")
    tab.wait_for(f"{PLAYER}.ended && !document.querySelector('.playing')")
    press(tab, "ArrowLeft")
    tab.wait_for(f"!{PLAYER}.ended && {PLAYER}.currentTime > 0")
