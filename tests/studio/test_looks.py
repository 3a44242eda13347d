"""How the pages look and move in a real browser: narrow and wide, light and dark, with few and with thousands of clips."""

import time

import pytest

from myxtts.recordings.book import read_book, write_corpus
from myxtts.studio.app import LANGUAGES
from tests.serving.browser import CHROMIUM, NO_CHROMIUM
from tests.studio.hosting import host_studio
from tests.studio.material import join_clips, write_book_of, write_run
from tests.studio.visiting import go, press, visit, wait_across

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
FIRST_SOUND_S = 1.0
"""Within which the first clip can be played, on a machine that has nothing else to do."""
SLOWER = 8
"""Than such a machine, at worst, is one that runs other tests."""
LONG_FRAME_MS = 50
SCROLL = """new Promise(done => {
  const frames = [];
  let last = performance.now();
  const step = now => {
    frames.push(now - last);
    last = now;
    scrollBy(0, 60);
    frames.length < 240 ? requestAnimationFrame(step) : done(frames.slice(1).sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
})"""


def show_as(tab, width, scheme):
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def measure_light(tab, selector, property):
    """How light a colour is, 0 to 255, on average."""
    return tab.evaluate(
        f"(([r, g, b]) => (r + g + b) / 3)(getComputedStyle(document.querySelector({selector!r})).{property}.match(/\\d+/g).map(Number))"
    )


def test_no_page_is_wider_than_the_screen_and_all_follow_light_and_dark(tmp_path):
    with host_studio(tmp_path / "workspace") as (client, studio):
        workspace = studio.workspace
        corpus = write_book_of(workspace.corpora / ("long-" * 8)[:39], 5)
        book = read_book(corpus)
        book.clips[0].text, book.clips[1].text = "Donaudampfschifffahrt" * 9, "A sentence of several words. " * 20
        book.clips[4].reasons += ["clipped", "noisy", "not_in_script", "speaking_rate", "other_voice"]
        write_corpus(corpus, book)
        write_run(workspace.runs / ("voice-" * 7)[:39])
        join_clips(tmp_path / "a.wav", 3)
        client.upload((tmp_path / "a.wav").read_bytes(), "recording-with-a-name-that-never-ends-" * 4 + ".wav")
        pages = ("/recordings", "/corpora", f"/corpora/{corpus.name}", "/training", f"/runs/{('voice-' * 7)[:39]}", "/voices", "/speak")  # fmt: skip
        with visit(client.origin) as tab:
            for language in LANGUAGES:
                for page in pages:
                    go(tab, client.origin, f"{page}?lang={language}")
                    if page.startswith("/runs"):
                        tab.wait_for("document.querySelector('[data-part=samples] audio')")
                    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
                    tab.evaluate("document.querySelectorAll('.told').forEach(each => { each.textContent = 'x'.repeat(300); })")  # fmt: skip
                    for width in WIDTHS:
                        for scheme in SCHEMES:
                            show_as(tab, width, scheme)
                            wide = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                            assert wide[0] <= wide[1], (page, language, width, wide)
                            ground, text = measure_light(tab, "body", "backgroundColor"), measure_light(tab, "body", "color")  # fmt: skip
                            assert (ground > text + 150) == (scheme == "light") == (ground > 128), (page, scheme)
            assert tab.complaints == []


@pytest.mark.parametrize("clips", [5, 5000])
def test_the_first_clip_is_soon_heard_and_scrolling_is_smooth(tmp_path, clips):
    with host_studio(tmp_path / "workspace") as (client, studio):
        write_book_of(studio.workspace.corpora / "many", clips)
        with visit(client.origin, "/corpora") as tab:
            show_as(tab, 390, "dark")
            began_s = time.monotonic()
            go(tab, client.origin, "/corpora/many")
            press(tab, " ")
            tab.wait_for("document.querySelector('#clip-player').currentTime > 0")
            first_s = time.monotonic() - began_s
            press(tab, " ")
            frames = tab.evaluate(SCROLL)
            loaded = tab.evaluate("document.querySelectorAll('.clip').length")
            long = sum(frame > LONG_FRAME_MS for frame in frames)
            print(f"\n{clips} clips: heard after {first_s:.2f} s; {len(frames)} frames, median {frames[len(frames) // 2]:.1f} ms, "
                  f"longest {frames[-1]:.0f} ms, {long} above {LONG_FRAME_MS} ms; {loaded} clips loaded")  # fmt: skip
            assert first_s < FIRST_SOUND_S * SLOWER
            assert frames[len(frames) // 2] < LONG_FRAME_MS * SLOWER
            assert loaded > 60 or loaded == clips


def test_every_page_is_reached_and_a_voice_is_asked_for_by_keys_alone(tmp_path):
    with host_studio(tmp_path / "workspace") as (client, studio):
        write_book_of(studio.workspace.corpora / "mine", 5)
        with visit(client.origin) as tab:
            for page in ("/corpora", "/training", "/voices", "/speak", "/recordings", "/corpora", "/corpora/mine"):
                tab_to(tab, f"main a[href='{page}'], nav a[href='{page}']")
                assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                press(tab, "Enter")
                wait_across(tab, f"location.pathname === {page!r} && document.readyState === 'complete'")
            press(tab, "j")
            tab_to(tab, ".clip.current [data-do=drop]")
            press(tab, "Enter")
            tab.wait_for("document.querySelector('.clip.current').matches('.dropped')")
            assert tab.complaints == []


def tab_to(tab, selector, most=60):
    """Goes on with the tabulator until it is there."""
    for _ in range(most):
        press(tab, "Tab")
        if tab.evaluate(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"{selector} is not reached")
