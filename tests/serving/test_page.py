"""The page in a real browser: type, press, hear."""

import pytest

from tests.serving.browser import CHROMIUM, NO_CHROMIUM, open_tab
from tests.serving.hosting import VOICE, GatedSynthesizer, host

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

READY = "document.querySelector('#voice').options.length > 0"
DONE = "document.querySelector('#player').duration > 0"
STATUS = "document.querySelector('#status').textContent"


def test_a_text_is_typed_and_heard(running):
    with open_tab(running.address) as tab:
        tab.wait_for(READY)
        assert tab.evaluate("document.querySelector('#speak').disabled")
        tab.type_into("#text", "Hello there, you.")
        assert not tab.evaluate("document.querySelector('#speak').disabled")
        tab.evaluate("document.querySelector('#voice').value = 'narrator'")
        tab.click("#speak")
        tab.wait_for(DONE)
        seconds = tab.evaluate("document.querySelector('#player').duration")
        assert f"{seconds:.1f} s of speech" in tab.evaluate(STATUS)
        tab.evaluate("document.querySelector('#player').play()")
        tab.wait_for("document.querySelector('#player').currentTime > 0.1")


@pytest.fixture
def gated():
    synthesizer = GatedSynthesizer()
    with host(synthesizer, {"Ana": VOICE}, token="correct-horse") as client:
        yield synthesizer, f"http://127.0.0.1:{client.port}", client


def test_the_page_asks_for_the_token_plays_while_it_comes_and_can_be_stopped(gated):
    synthesizer, address, client = gated
    with open_tab(address) as tab:
        tab.wait_for("!document.querySelector('#token-row').hidden")
        tab.type_into("#token", "correct-horse")
        tab.click("#text")
        tab.wait_for(READY)
        tab.type_into("#text", "سلام.")
        tab.click("#speak")
        synthesizer.gate.release(2)
        # Two tenths of a second are there, and the rest is not made yet.
        tab.wait_for(f"{STATUS}.includes('0.2 s')")
        assert synthesizer.made == 2
        assert tab.evaluate("document.querySelector('#player').hidden")
        tab.click("#stop")
        tab.wait_for(f"{STATUS} === 'Stopped.'")
        client.wait_for_requests(0)
        synthesizer.open_gate()
        assert synthesizer.ended.wait(60)
        assert synthesizer.made <= 3


def test_persian_is_written_from_the_right_and_an_error_is_shown_as_the_server_says_it():
    with host(GatedSynthesizer(), {"Ana": VOICE}) as client, open_tab(f"http://127.0.0.1:{client.port}") as tab:
        tab.wait_for(READY)
        tab.type_into("#text", "!!!")
        tab.click("#speak")
        tab.wait_for(f"{STATUS}.includes('something to say')")
        assert tab.evaluate("document.querySelector('#status').classList.contains('bad')")
        assert tab.evaluate("document.querySelector('#text').dir") == "ltr"
        tab.evaluate("(() => { const s = document.querySelector('#language'); s.value = 'fa'; "
                     "s.dispatchEvent(new Event('change')); })()")  # fmt: skip
        assert tab.evaluate("document.querySelector('#text').dir") == "rtl"
        tab.click("#switch")
        assert tab.evaluate("document.documentElement.dir") == "rtl"
        assert tab.evaluate("document.querySelector('#speak').textContent") == "بگو"
        assert "رضایت" in tab.evaluate("document.querySelector('.consent').textContent")
