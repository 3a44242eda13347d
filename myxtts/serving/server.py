"""A server from its settings and its address to its end, and the connections it lets in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from myxtts.inference.speech import SpeechSettings
from myxtts.inference.voices import Voice
from myxtts.serving.app import Service, build_application
from myxtts.serving.limits import ServingLimits, name_client
from myxtts.serving.model_thread import ModelThread
from myxtts.serving.request import (
    BUSY,
    SLOW_CLIENT,
    TOO_MANY,
    ApiError,
    ServerStartError,
    answer_error,
    choose_language,
)
from myxtts.serving.voices import collect_voices

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

_log = logging.getLogger(__name__)


TOKEN_VARIABLE = "MYXTTS_SERVE_TOKEN"


@dataclass(frozen=True)
class ServerSettings:
    """How a server is to be run."""

    host: str = "127.0.0.1"
    port: int = 8020
    """0 is any that is free."""
    token: str | None = None
    """That clients must bring."""
    allow_anyone: bool = False
    """To listen beyond this machine without a token."""
    voices: Path | None = None
    """Folder of voice files and recordings."""
    allow_upload: bool = False
    """To let clients clone voices."""
    first_codes: int = 6
    """Codes, of 46 ms, of the first chunk of a stream."""
    limits: ServingLimits = field(default_factory=ServingLimits)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ServerStartError(
                f"A token must be made of visible ASCII characters, but is not. Make one with `openssl rand -hex 16`, and "
                f"give it in {TOKEN_VARIABLE}."
            )
        if not 0 <= self.port <= 65535:
            raise ServerStartError(f"--port must be from 0 to 65535, but is {self.port}.")
        if not 1 <= self.first_codes <= 1000:
            raise ServerStartError(f"--first-chunk must be from 1 to 1000 codes, but is {self.first_codes}.")


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def bind_socket(settings: ServerSettings) -> socket.socket:
    """A socket at the server's address, not listening yet. Raises `ServerStartError` for one that is taken or not safe."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServerStartError(f"--host must be an address of this machine, but is {settings.host!r}: {error.strerror}.") from error  # fmt: skip
    is_open = settings.token is None and not settings.allow_anyone
    if is_open and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ServerStartError(
            f"--host {settings.host} lets other machines in, so a token must be given, but none is. Give one in "
            f"{TOKEN_VARIABLE}, stay on 127.0.0.1, or say --allow-anyone."
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _refuse_address(settings, error) from error
    return listener


def _refuse_address(settings: ServerSettings, error: OSError) -> ServerStartError:
    return ServerStartError(
        f"--host {settings.host} --port {settings.port} cannot be used: {error.strerror}. Give another --port; 0 is any that is free."
    )


def name_address(listener: socket.socket) -> str:
    """The address of a server, as a browser takes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def list_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """Names under which the server may be called; None where anybody is let in, or the token decides."""
    if settings.token is not None or settings.allow_anyone:
        return None
    return (settings.host.lower(), *LOOPBACK_NAMES)


FAREWELL_SECONDS = 3
"""What is being sent may end within it when the server stops."""
SEND_BUFFER_BYTES = 64 << 10
"""Of the kernel, for a connection. By itself it takes megabytes, a minute of speech, from a client that reads nothing."""
HEADER_BYTES = 16 << 10
WARM_UP_TEXT = "1"
"""Can be said in every language."""


def run_server(
    listener: socket.socket,
    settings: ServerSettings,
    open_synthesizer: Callable[[], AbstractContextManager[Synthesizer]],
    tell_ready: Callable[[Synthesizer, tuple[str, ...]], None],
) -> None:
    """Serves until SIGINT or SIGTERM, and leaves nothing running; `tell_ready` is called before the first request is taken."""
    voices: dict[str, Voice] = {}

    @contextlib.contextmanager
    def open_warm() -> Iterator[Synthesizer]:
        with open_synthesizer() as synthesizer:
            voices.update(collect_voices(synthesizer, settings.voices))
            if not voices and not settings.allow_upload:
                raise ServerStartError(
                    "A server must have a voice, but this model comes with none. Give --voices DIR with voice files or "
                    "recordings, or --allow-upload."
                )
            for voice in list(voices.values())[:1]:
                # Compiles what the first request would otherwise wait for.
                language = choose_language(None, synthesizer.languages)
                for _ in synthesizer.join_batch(
                    WARM_UP_TEXT, voice, language, SpeechSettings(max_codes=2), first_codes=1
                ):
                    synthesizer.batch.step()
            yield synthesizer

    thread = ModelThread(open_warm, share=lambda synthesizer: synthesizer.batch.step())
    synthesizer = thread.start()
    try:
        service = Service(
            thread,
            synthesizer,
            voices,
            settings.limits,
            allow_upload=settings.allow_upload,
            first_codes=settings.first_codes,
        )
        # Before anybody is told: clients that come at once wait until they are taken.
        try:
            listener.listen()
        except OSError as error:
            # Another server has bound the same address, and listened, while this one loaded its model.
            raise _refuse_address(settings, error) from error
        tell_ready(synthesizer, service.voices.names)
        app = build_application(service, token=settings.token, hosts=list_hosts(settings))
        # uvicorn raises the signals it was stopped by once more at its end. Taken here, so that what has to be put away is.
        with take_signals():
            make_server(app, settings.limits).run(sockets=[listener])
    finally:
        thread.stop()


def make_server(app: ASGIApp, limits: ServingLimits) -> uvicorn.Server:
    """A server for an application, with what it must not do turned off."""
    config = uvicorn.Config(
        app,
        http=functools.partial(ClientConnection, limits=limits),  # type: ignore[arg-type]  # called like the class
        h11_max_incomplete_event_size=HEADER_BYTES,
        backlog=limits.connections,
        ws="none",
        lifespan="off",
        # A header that any client can write must not decide for whom requests are counted.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    return uvicorn.Server(config)


class ClientConnection(H11Protocol):
    """A connection whose client must ask within a time, and take its answer within one. One too many is refused."""

    def __init__(self, *, limits: ServingLimits, **others: Any):
        super().__init__(**others)
        self._limits, self._name = limits, ""
        self._asking: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._name = name_client(self.client[0] if self.client else "")
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        # Nothing may wait in this process unnoticed: `pause_writing` is called as soon as the kernel takes no more.
        transport.set_write_buffer_limits(high=0)
        self._expect_request()
        names = [each._name for each in self.connections if isinstance(each, ClientConnection)]
        if names.count(self._name) > (most := self._limits.connections_per_client):
            told = f"A client may have {most} connections, but this is one more. Close some."
            self.app = answer_error(ApiError(told, TOO_MANY))  # A response is an application, too.
        elif len(names) > (most := self._limits.connections):
            told = f"This server has {most} connections at most, and that many are there. Try again in a moment."
            self.app = answer_error(ApiError(told, BUSY))

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._asking, self._taking)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            _stop(self._asking)

    def on_response_complete(self) -> None:
        # A body that goes on after its answer is no new request either.
        self._expect_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(self._limits.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        _stop(self._taking)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(f"A request must be HTTP/1.1 with headers up to {HEADER_BYTES} bytes, but is not."))

    def _expect_request(self) -> None:
        _stop(self._asking)
        error = ApiError(
            f"A request must come within {self._limits.headers_s:g} s up to its body, but did not. Send it again.",
            SLOW_CLIENT,
        )
        self._asking = self.loop.call_later(self._limits.headers_s, self._refuse, error)

    def _refuse(self, error: ApiError) -> None:
        """Ends the connection, with the reason where a client may still be told one."""
        is_idle = self.cycle is not None and self.cycle.response_complete and not self.conn.trailing_data[0]
        if self.flow.write_paused:
            self.transport.abort()
            return
        if is_idle or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        _log.info("%s %s: %s", self._name, error.kind.status, error)
        answer = answer_error(error)
        for event in (
            h11.Response(status_code=answer.status_code, headers=[*answer.raw_headers, (b"connection", b"close")]),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        if self.cycle is not None:
            # Whoever reads the body must not answer, too.
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


@contextlib.contextmanager
def take_signals() -> Iterator[None]:
    """SIGINT and SIGTERM do nothing within, or what a server makes of them."""
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
