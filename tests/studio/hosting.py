"""Real studios on loopback ports, in this process, and clients for them."""

from __future__ import annotations

import contextlib
import http.client
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from myxtts.serving.limits import ServingLimits
from myxtts.serving.server import LOOPBACK_NAMES, ServerSettings, bind_socket, make_server
from myxtts.studio.app import Studio, build_studio
from myxtts.studio.workspace import Workspace
from tests.serving.hosting import Answer, Client

TOKEN = "open-sesame"
WAIT_S = 60
DEMO = Path(__file__).resolve().parents[2] / "myxtts" / "data" / "demo" / "wavs"


class StudioClient(Client):
    """Asks as the studio's own page does, unless told otherwise."""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPConnection:
        if isinstance(body, list | dict):
            body, headers = urllib.parse.urlencode(body).encode(), {"Content-Type": FORM, **headers}
        own = {"Cookie": f"myxtts-studio-{self.port}={TOKEN}", "Origin": self.origin}
        return super().start(method, path, body, **{k: v for k, v in (own | headers).items() if v})

    def upload(self, content: bytes, title: str = "a", **headers: str) -> Answer:
        return self.ask("POST", f"/recordings?title={urllib.parse.quote(title)}", content, **(BYTES | headers))


FORM = "application/x-www-form-urlencoded"
BYTES = {"Content-Type": "application/octet-stream"}


@contextlib.contextmanager
def host_studio(root: Path, **settings: Any) -> Iterator[tuple[StudioClient, Studio]]:
    """A studio for the time of the block."""
    port = settings.pop("port", 0)
    times = {name: settings.pop(name) for name in ("headers_s", "send_s") if name in settings}
    limits = ServingLimits(requests_per_minute=10_000, **times)
    workspace = Workspace(root)
    workspace.make()
    studio = Studio(workspace, rehearsal=True, **settings)
    server = make_server(build_studio(studio, token=TOKEN, hosts=LOOPBACK_NAMES), limits)
    with contextlib.closing(bind_socket(ServerSettings(port=port, token=TOKEN))) as listener:
        listener.listen()
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-studio")
        running.start()
        try:
            yield StudioClient(listener.getsockname()[1]), studio
        finally:
            server.should_exit = True
            running.join(WAIT_S)
        assert not running.is_alive()
