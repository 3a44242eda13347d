"""A server from its address to its end."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from myxtts.inference.settings import SpeechSettings
from myxtts.inference.voices import Voice
from myxtts.serving.addresses import list_hosts
from myxtts.serving.application import build_application
from myxtts.serving.errors import ServerStartError
from myxtts.serving.limits import Places, RateLimiter
from myxtts.serving.model_thread import ModelThread
from myxtts.serving.routes import Service
from myxtts.serving.server_settings import ServerSettings
from myxtts.serving.speech_order import choose_language
from myxtts.serving.voice_shelf import VoiceShelf, collect_voices

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

FAREWELL_SECONDS = 3
"""What is being sent may end within it when the server stops."""
MOST_CONNECTIONS = 200
WARM_UP_TEXT = "1"
"""Can be said in every language."""
WARM_UP_CODES = 2


def run_server(
    listener: socket.socket,
    settings: ServerSettings,
    open_synthesizer: Callable[[], AbstractContextManager[Synthesizer]],
    tell_ready: Callable[[Synthesizer, tuple[str, ...]], None],
) -> None:
    """Serves until SIGINT or SIGTERM, and leaves nothing running.

    Args:
        listener: from `bind_socket`.
        settings: those that it was bound with.
        open_synthesizer: the scope in which the model is there; entered in the model's thread.
        tell_ready: called with the model and the names of the voices before the first request is taken.
    """
    voices: dict[str, Voice] = {}

    @contextlib.contextmanager
    def open_warm() -> Iterator[Synthesizer]:
        with open_synthesizer() as synthesizer:
            voices.update(collect_voices(synthesizer, settings.voices))
            _check_voices(voices, settings)
            _warm_up(synthesizer, voices)
            yield synthesizer

    thread = ModelThread(open_warm)
    synthesizer = thread.start()
    try:
        service = make_service(thread, synthesizer, voices, settings)
        # Before anybody is told: clients that come at once wait until they are taken.
        listener.listen()
        tell_ready(synthesizer, service.shelf.names)
        app = build_application(service, token=settings.token, hosts=list_hosts(settings))
        # uvicorn raises the signals it was stopped by once more at its end. Taken here, so that what has to be put away is.
        with _take_signals():
            make_server(app).run(sockets=[listener])
    finally:
        thread.stop()


def make_service(
    thread: ModelThread[Synthesizer], synthesizer: Synthesizer, voices: dict[str, Voice], settings: ServerSettings
) -> Service:
    """What the routes of a server share."""
    return Service(
        thread=thread,
        languages=synthesizer.languages,
        rate_hz=synthesizer.rate_hz,
        shelf=VoiceShelf(voices),
        limits=settings.limits,
        limiter=RateLimiter(settings.limits.requests_per_minute),
        failures=RateLimiter(settings.limits.requests_per_minute, "wrong tokens"),
        places=Places(settings.limits.queue),
        allow_upload=settings.allow_upload,
    )


def make_server(app: ASGIApp) -> uvicorn.Server:
    """A server for an application, with what it must not do turned off."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        # A header that any client can write must not decide for whom requests are counted.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def _take_signals() -> Iterator[None]:
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _check_voices(voices: dict[str, Voice], settings: ServerSettings) -> None:
    if not voices and not settings.allow_upload:
        raise ServerStartError(
            "A server must have a voice, but this model comes with none. Give --voices DIR with voice files or recordings, "
            "or --allow-upload."
        )


def _warm_up(synthesizer: Synthesizer, voices: dict[str, Voice]) -> None:
    """Compiles what the first request would otherwise wait for."""
    for voice in list(voices.values())[:1]:
        settings = SpeechSettings(max_codes=WARM_UP_CODES)
        for _ in synthesizer.stream(WARM_UP_TEXT, voice, choose_language(None, synthesizer.languages), settings):
            pass
