"""A headless Chromium, driven through its debugging pipe: no driver and no further package is needed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_CHROMIUM = "there is no Chromium on this machine"

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--mute-audio", "--remote-debugging-pipe", "--autoplay-policy=no-user-gesture-required", "--window-size=900,900",
)  # fmt: skip


PATIENCE_S = 300
COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded")
"""Events: what a page's scripts throw, and what the browser itself finds wrong with it."""


class Tab:
    """One page in a browser.

    Attributes:
        complaints: what was wrong with the pages so far, as the browser's console shows it.
    """

    def __init__(self, commands: Any, answers: Any, url: str):
        self._commands, self._answers = commands, answers
        self._count = 0
        self.complaints: list[Any] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.go(url)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def call(self, method: str, **params: Any) -> Any:
        """What the browser answers to a command; of events, complaints are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = json.loads(self._read_message())
            if answer.get("method") in COMPLAINTS:
                self.complaints.append(answer["params"])
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _read_message(self) -> bytes:
        parts = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has gone"
            parts += byte
        return bytes(parts)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Waits until an expression is true."""
        has_come = self.evaluate(
            f"new Promise(done => {{ const end = Date.now() + {1000 * PATIENCE_S}, look = () => {{ let ok = false; "
            f"try {{ ok = {condition}; }} catch {{}} ok || Date.now() > end ? done(Boolean(ok)) : setTimeout(look, 20); }}; look(); }})"
        )
        assert has_come, f"{condition}: never; the page says {self.evaluate('document.body.innerText')[:2000]}"

    def click(self, selector: str) -> None:
        """Presses the mouse in the middle of an element, as a person does."""
        box = self.evaluate(f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect(); "
                            "return [b.x + b.width / 2, b.y + b.height / 2]; })()")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type_into(self, selector: str, text: str) -> None:
        self.click(selector)
        self.call("Input.insertText", text=text)


@contextlib.contextmanager
def open_tab(url: str) -> Iterator[Tab]:
    """A page in a browser of its own."""
    assert CHROMIUM is not None
    for_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    # A helper of the browser may still write while it is being killed.
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        # Chromium takes commands from descriptor 3 and answers on 4.
        line = f'exec "$@" 3<&{for_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", line, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(for_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(for_browser)
        os.close(from_browser)
        try:
            with os.fdopen(commands, "wb") as writer, os.fdopen(answers, "rb") as reader:
                yield Tab(writer, reader, url)
        finally:
            # The browser and its helpers are one group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
