"""A browser that visits a studio, and hands that do what a person does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tests.serving.browser import Tab, open_tab
from tests.studio.hosting import TOKEN

PATIENCE_S = 600
CODES = {"Enter": 13, "Escape": 27, " ": 32, "Backspace": 8, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}


@contextlib.contextmanager
def visit(origin: str, path: str = "/recordings", token: str = TOKEN) -> Iterator[Tab]:
    """A page of a studio, in a browser that has come through its door."""
    with open_tab(f"{origin}/?token={token}") as tab:
        wait_across(tab, "location.pathname === '/recordings' && document.readyState === 'complete'")
        if path != "/recordings":
            go(tab, origin, path)
        yield tab


def go(tab: Tab, origin: str, path: str) -> None:
    tab.go(f"{origin}{path}")
    wait_across(tab, f"location.pathname + location.search === {path!r} && document.readyState === 'complete'")


def wait_across(tab: Tab, condition: str, patience_s: float = PATIENCE_S) -> None:
    """Waits until an expression is true, on whatever page the browser is by then."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        # A page that goes while it is asked answers with an error.
        with contextlib.suppress(AssertionError):
            if tab.evaluate(f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"):
                return
        time.sleep(0.05)
    raise AssertionError(f"{condition}: never; the page says {tab.evaluate('document.body.innerText')[:2000]}")


def press(tab: Tab, key: str) -> None:
    typed = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
    facts = {"key": key, "windowsVirtualKeyCode": CODES.get(key) or ord(key.upper())}
    tab.call("Input.dispatchKeyEvent", type="keyDown", text=typed, **facts)
    tab.call("Input.dispatchKeyEvent", type="keyUp", **facts)


def choose_file(tab: Tab, selector: str, path: Path) -> None:
    """What a person does with the browser's own dialog."""
    tab.call("DOM.enable")
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    node = tab.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    tab.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)
