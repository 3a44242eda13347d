"""Real servers on loopback ports, in this process, and clients for them."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from myxtts.inference.speech import SpeechChunk, SpokenPiece
from myxtts.inference.voices import Voice
from myxtts.serving.app import Service, build_application
from myxtts.serving.limits import ServingLimits
from myxtts.serving.model_thread import ModelThread
from myxtts.serving.server import ServerSettings, bind_socket, list_hosts, make_server

WAIT_S = 60
RATE_HZ = 22_050
CHUNK_SAMPLES = 2205


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Client:
    """Asks one server, with a new connection for each request."""

    def __init__(self, port: int, timeout_s: float = WAIT_S, address: str = "127.0.0.1"):
        self.port, self._timeout_s, self._address = port, timeout_s, address

    def move(self, address: str) -> Client:
        """The same client at another loopback address, which makes it another one for the server."""
        return Client(self.port, self._timeout_s, address)

    def connect(self) -> socket.socket:
        """A connection on which nothing was said yet."""
        return socket.create_connection(("127.0.0.1", self.port), self._timeout_s, (self._address, 0))

    def start(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPConnection:
        """A request that was sent and whose answer nobody has read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, self._timeout_s, (self._address, 0))
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        # So that closing the response closes the socket.
        connection.request(method, path, body, {"Connection": "close", **headers})
        return connection

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """The answer as soon as it begins. Close it by `response.close()`."""
        return self.start(method, path, body, **headers).getresponse()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with contextlib.closing(self.open(method, path, body, **headers)) as response:
            return Answer(response.status, response.headers, response.read())

    def speak(self, text: str = "Hello.", voice: str = "Ana", **fields: Any) -> Answer:
        return self.ask("POST", "/v1/audio/speech", {"input": text, "voice": voice, **fields})

    def count_requests(self) -> int:
        return int(json.loads(self.ask("GET", "/healthz").body)["requests"])

    def wait_for_requests(self, count: int) -> None:
        """Asks until the server has this many requests in hand; each asking is answered by it, so this is no busy loop."""
        for _ in range(20_000):
            if self.count_requests() == count:
                return
        raise AssertionError(f"the server never had {count} requests")


@contextlib.contextmanager
def run_thread(synthesizer: Any) -> Iterator[ModelThread]:
    """The model's thread with a model that is there already."""
    thread = ModelThread(lambda: contextlib.nullcontext(synthesizer))
    thread.start()
    try:
        yield thread
    finally:
        thread.stop(WAIT_S)


@contextlib.contextmanager
def host(
    synthesizer: Any, voices: dict[str, Voice], *, thread: ModelThread | None = None, **settings: Any
) -> Iterator[Client]:
    """A server for the time of the block."""
    names = [field.name for field in dataclasses.fields(ServingLimits)]
    limits = {name: settings.pop(name) for name in names if name in settings}
    asked = ServerSettings(port=0, limits=ServingLimits(**{"requests_per_minute": 10_000, **limits}), **settings)
    with contextlib.ExitStack() as stack:
        thread = thread or stack.enter_context(run_thread(synthesizer))
        chosen = {"allow_upload": asked.allow_upload, "first_codes": asked.first_codes}
        service = Service(thread, synthesizer, voices, asked.limits, **chosen)
        server = make_server(build_application(service, token=asked.token, hosts=list_hosts(asked)), asked.limits)
        listener = bind_socket(asked)
        # From here on clients may come: they wait until the server takes them.
        listener.listen()
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
        running.start()
        try:
            yield Client(listener.getsockname()[1])
        finally:
            server.should_exit = True
            running.join(WAIT_S)
            listener.close()
        assert not running.is_alive()


def read_answer(connection: socket.socket) -> Answer:
    """What a server says on a connection, whether it was asked or not."""
    with contextlib.closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        return Answer(response.status, response.headers, response.read())


def give_up(response: http.client.HTTPResponse) -> None:
    """Closes a connection in the middle of an answer."""
    response.fp.raw._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    response.close()


class GatedSynthesizer:
    """Says `chunks` tenths of a second, each when the test lets it."""

    rate_hz = RATE_HZ
    languages = ("en", "fa")
    speakers = ()
    batch = types.SimpleNamespace(codes=0, saying=(), waiting=())

    def __init__(self, chunks: int = 5, error: Exception | None = None):
        self.gate = threading.Semaphore(0)
        self.ended = threading.Event()
        self.made = 0
        self.first_codes: int | None = None
        """What was asked for last."""
        self.was_forgotten = False
        """Nobody let it go on, nor told it to stop."""
        self._chunks, self._error = chunks, error

    def join_batch(
        self, text: str, voice: Voice, language: str, settings: Any, *, first_codes: int | None
    ) -> Iterator[SpeechChunk]:
        chunks, self.first_codes = [], first_codes
        try:
            for index in range(self._chunks):
                self.was_forgotten = not self.gate.acquire(timeout=WAIT_S)
                assert not self.was_forgotten
                self.made += 1
                chunks.append(SpeechChunk(np.full(CHUNK_SAMPLES, (index + 1) / 10, np.float32)))
                # Whole pieces, as the real one makes them: nothing comes before all of it was made.
                yield SpeechChunk(np.zeros(0, np.float32)) if first_codes is None else chunks.pop()
            if self._error:
                raise self._error
            yield from chunks
            yield SpeechChunk(np.zeros(0, np.float32), SpokenPiece(text, self._chunks, False, 0.1 * self._chunks))
        finally:
            self.ended.set()

    def open_gate(self) -> None:
        self.gate.release(10_000)


VOICE = Voice(np.zeros((32, 32), np.float32), np.zeros(0, np.float32))
