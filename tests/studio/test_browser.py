"""The studio in a real browser: uploads, keys, thousands of clips, a lost connection, a microphone."""

import contextlib
import re
import time

import pytest

from myxtts.recordings.book import read_book
from tests.serving import browser
from tests.serving.browser import CHROMIUM, NO_CHROMIUM
from tests.serving.hosting import CHUNK_SAMPLES, VOICE, GatedSynthesizer, host
from tests.studio import hosting
from tests.studio.hosting import host_studio
from tests.studio.material import join_clips, write_book_of, write_run
from tests.studio.visiting import choose_file, go, press, visit

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

FIRST_SOUND_S = 1.0
"""Within which the first of thousands of clips can be played, on a machine that has nothing else to do."""
LOST = "document.querySelector('#lost').textContent"
SLOWER = 8
"""Than such a machine, at worst, is one that runs other tests."""


@pytest.fixture
def hosted(tmp_path):
    with host_studio(tmp_path / "workspace") as hosted:
        yield hosted


def test_a_recording_is_uploaded_played_and_removed(hosted, tmp_path):
    client, studio = hosted
    join_clips(tmp_path / "long one.wav", 8)
    (tmp_path / "song.wav").write_bytes(b"no sound")
    with visit(client.origin) as tab:
        assert tab.evaluate("document.querySelector('#files').disabled")
        tab.click("#consent")
        choose_file(tab, "#files", tmp_path / "long one.wav")
        tab.wait_for("document.querySelector('#recordings article b')?.textContent === 'long one.wav'")
        tab.wait_for(
            "(a => { a.preload = 'auto'; return a.duration > 8; })(document.querySelector('#recordings audio'))"
        )
        choose_file(tab, "#files", tmp_path / "song.wav")
        tab.wait_for(
            "document.querySelector('#upload-told.bad')?.textContent.startsWith('song.wav: This is no recording')"
        )
        tab.evaluate("window.confirm = () => true")
        tab.click("#recordings button")
        tab.wait_for("document.querySelectorAll('#recordings article').length === 0")
        assert studio.workspace.list_recordings() == []
        assert list_refusals(tab) == [("400", "/recordings?title=song.wav&text=")]


def list_refusals(tab):
    """What the console complains of, where that is an answer of the studio: its status and what was asked for."""
    entries = [each["entry"] for each in tab.complaints]
    return [
        (re.search(r"status of (\d+)", each["text"])[1], re.sub("http://[^/]+", "", each["url"])) for each in entries
    ]


def test_a_file_that_is_too_large_is_not_even_sent(tmp_path):
    (tmp_path / "long one.wav").write_bytes(b"RIFF" * 1000)
    with host_studio(tmp_path / "workspace", most_upload_bytes=2048) as (client, _), visit(client.origin) as tab:
        tab.click("#consent")
        choose_file(tab, "#files", tmp_path / "long one.wav")
        tab.wait_for(
            "document.querySelector('#upload-told.bad')?.textContent.startsWith('long one.wav is larger than 2.0 kB')"
        )
        assert "up to 24 h and 2.0 kB each" in tab.evaluate("document.body.innerText")
        assert tab.complaints == []


def test_clips_are_mended_kept_and_dropped_by_keys_alone(hosted):
    client, studio = hosted
    corpus = write_book_of(studio.workspace.corpora / "mine", 5)
    with visit(client.origin, "/corpora/mine") as tab:
        press(tab, "e")
        press(tab, "Backspace")
        tab.call("Input.insertText", text="A better sentence.")
        press(tab, "Enter")
        tab.wait_for("document.querySelector('.clip .told').textContent === 'saved'")
        press(tab, " ")
        tab.wait_for(
            "document.querySelector('.clip.playing') && document.querySelector('#clip-player').currentTime > 0"
        )
        press(tab, "j")
        press(tab, "a")
        tab.wait_for("document.querySelector('#counts').textContent.startsWith('5 of 5')")
        press(tab, "j")
        press(tab, "x")
        tab.wait_for("document.querySelector('#counts').textContent.startsWith('4 of 5')")
        press(tab, "e")
        tab.call("Input.insertText", text="Never mind.")
        press(tab, "Escape")
        clips = {clip.id: clip for clip in read_book(corpus).clips}
        assert clips["clip_00003"].text == "A better sentence."
        assert (clips["clip_00004"].kept, clips["clip_00000"].kept) == (True, False)
        assert clips["clip_00000"].text == "This is sentence 0."
        assert tab.complaints == []


def test_of_five_thousand_clips_the_first_is_soon_played_and_the_others_come(hosted):
    client, studio = hosted
    write_book_of(studio.workspace.corpora / "many", 5000, doubtful=100)
    with visit(client.origin, "/corpora") as tab:
        began_s = time.monotonic()
        go(tab, client.origin, "/corpora/many")
        press(tab, " ")
        tab.wait_for("document.querySelector('#clip-player').currentTime > 0")
        assert time.monotonic() - began_s < FIRST_SOUND_S * SLOWER
        assert tab.evaluate("document.querySelectorAll('.clip').length") <= 120
        for _ in range(3):
            have = tab.evaluate("document.querySelectorAll('.clip').length")
            tab.evaluate("scrollTo(0, document.body.scrollHeight)")
            tab.wait_for(f"document.querySelectorAll('.clip').length > {have}")
        assert tab.evaluate("new Set([...document.querySelectorAll('.clip')].map(each => each.dataset.url)).size === "
                            "document.querySelectorAll('.clip').length")  # fmt: skip


def test_a_lost_studio_is_told_on_the_page_that_watches(tmp_path):
    with contextlib.ExitStack() as stack:
        with host_studio(tmp_path / "workspace") as (client, studio):
            write_run(studio.workspace.runs / "first")
            tab = stack.enter_context(visit(client.origin, "/runs/first"))
            tab.wait_for("document.querySelector('[data-part=figures] .tiles')")
            assert tab.evaluate(LOST) == ""
        tab.wait_for(f"{LOST}.includes('does not answer')")


def test_a_studio_that_was_started_again_is_told_as_such(tmp_path, monkeypatch):
    with contextlib.ExitStack() as stack:
        with host_studio(tmp_path / "workspace") as (client, studio):
            write_run(studio.workspace.runs / "first")
            tab = stack.enter_context(visit(client.origin, "/runs/first"))
            tab.wait_for("document.querySelector('[data-part=figures] .tiles')")
        tab.wait_for(f"{LOST}.includes('does not answer')")
        monkeypatch.setattr(hosting, "TOKEN", "another")
        stack.enter_context(host_studio(tmp_path / "workspace", port=client.port))
        tab.wait_for(f"{LOST}.includes('open the address it has printed')")
        # As in another tab of this browser.
        tab.evaluate("fetch('/?token=another')")
        tab.wait_for(f"{LOST} === ''")


def test_a_lost_studio_is_told_where_a_page_asks_again_and_again(tmp_path):
    with contextlib.ExitStack() as stack:
        with host_studio(tmp_path / "workspace") as (client, studio):
            write_book_of(studio.workspace.corpora / "mine", 5)
            tab = stack.enter_context(visit(client.origin, "/corpora"))
            studio.jobs.is_running = lambda name: True
            go(tab, client.origin, "/corpora")
            tab.wait_for("document.querySelector('[data-status=making]')")
        tab.wait_for(f"{LOST}.includes('does not answer')")
        assert tab.evaluate("getComputedStyle(document.querySelector('#lost')).display") == "block"
        with host_studio(tmp_path / "workspace", port=client.port):
            tab.wait_for(f"{LOST} === '' && document.querySelector('[data-status=ready]')")


def test_sentences_of_a_script_are_recorded_with_their_text(hosted, monkeypatch):
    monkeypatch.setattr(browser, "FLAGS", (*browser.FLAGS, "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"))  # fmt: skip
    client, studio = hosted
    with visit(client.origin) as tab:
        tab.click("#consent")
        tab.evaluate("document.querySelector('#studio-booth').open = true")
        tab.type_into("#script", "Dr. Who paid 3.5 dollars. And the second!")
        tab.click("#booth-begin")
        tab.wait_for("document.querySelector('#sentence').textContent === 'Dr. Who paid 3.5 dollars.'")
        tab.wait_for("document.querySelector('#level').value > 0")
        tab.click("#booth-record")
        tab.evaluate("new Promise(done => setTimeout(done, 1200))")
        tab.click("#booth-record")
        tab.wait_for("!document.querySelector('#booth-keep').disabled")
        tab.click("#booth-keep")
        tab.wait_for("document.querySelector('#sentence').textContent === 'And the second!'")
        (recording,) = studio.workspace.list_recordings()
        assert recording.text == "Dr. Who paid 3.5 dollars."
        assert recording.seconds > 0.5
        assert tab.complaints == []


def test_a_script_is_recorded_by_keys_alone_and_enter_never_loses_a_take(hosted, monkeypatch):
    monkeypatch.setattr(browser, "FLAGS", (*browser.FLAGS, "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"))  # fmt: skip
    client, studio = hosted
    with visit(client.origin) as tab:
        for place, key in (("#consent", " "), ("#studio-booth summary", "Enter")):
            while not tab.evaluate(f"document.activeElement.matches({place!r})"):
                press(tab, "Tab")
            press(tab, key)
        press(tab, "Tab")
        tab.call("Input.insertText", text="One. Two. Three.")
        press(tab, "Tab")
        press(tab, "Enter")
        tab.wait_for("document.querySelector('#level').value > 0")
        for take in (1, 2):
            press(tab, "r")
            tab.evaluate("new Promise(done => setTimeout(done, 600))")
            press(tab, "r")
            tab.wait_for("!document.querySelector('#booth-keep').disabled")
            press(tab, "p")
            tab.wait_for("document.querySelector('#booth-player').currentTime > 0")
            press(tab, "Enter")
            tab.wait_for(f"document.querySelectorAll('#recordings article').length === {take}")
        # After the mouse, too.
        tab.click("#booth-record")
        tab.evaluate("new Promise(done => setTimeout(done, 600))")
        tab.click("#booth-record")
        tab.wait_for("!document.querySelector('#booth-keep').disabled")
        press(tab, "Enter")
        tab.wait_for("document.querySelectorAll('#recordings article').length === 3")
        assert {each.text for each in studio.workspace.list_recordings()} == {"One.", "Two.", "Three."}
        assert tab.complaints == []


@pytest.fixture
def speaking(hosted, monkeypatch):
    """A studio whose model is there at once, and says three tenths of a second when its gate is open."""
    client, studio = hosted
    synthesizer = GatedSynthesizer(chunks=3)
    with host(synthesizer, {"Ana": VOICE}, token="inner") as serve:
        server = studio.speaking._server
        server.port, server.token = serve.port, "inner"

        async def load(model, flags):
            assert model == "base"

        monkeypatch.setattr(server, "load", load)
        yield client, synthesizer, server


def test_a_sentence_is_spoken_as_it_is_made_and_downloaded(speaking):
    client, synthesizer, server = speaking
    with visit(client.origin, "/speak") as tab:
        tab.type_into("#text", "Hello there.")
        synthesizer.gate.release(1)
        tab.click("#say")
        tab.wait_for("document.querySelector('#speak-told').textContent === 'Speaking: 0.1 s'")
        synthesizer.open_gate()
        tab.wait_for("document.querySelector('#speak-told').textContent === '0.3 s of speech.'")
        size, name = tab.evaluate(
            "fetch(document.querySelector('#download').href).then(r => r.arrayBuffer())"
            ".then(b => [b.byteLength, document.querySelector('#download').download])"
        )
        assert (size, name) == (44 + 2 * 3 * CHUNK_SAMPLES, "speech.wav")
        assert tab.evaluate("[...document.querySelectorAll('#voice > option')].map(each => each.value)") == ["", "Ana"]
        tab.evaluate("document.querySelector('#text').value = '!!!'")
        tab.click("#say")
        tab.wait_for("document.querySelector('#speak-told.bad')?.textContent.includes('something to say')")
        server.port = 1
        tab.click("#say")
        tab.wait_for(
            "document.querySelector('#speak-told.bad')?.textContent.startsWith('The model that speaks has gone')"
        )
        assert list_refusals(tab) == [("400", "/speak"), ("503", "/speak")]
