"""What the server answers: who may ask, the routes, the page, and a line in the log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from myxtts.errors import SpeechRequestError, VoiceError
from myxtts.serving import metrics
from myxtts.serving.limits import Places, RateLimiter, ServingLimits
from myxtts.serving.model_thread import Job, JobCancelled, ModelThread, Result
from myxtts.serving.request import (
    BUSY,
    FOREIGN_HOST,
    INTERNAL,
    MODELS,
    SLOW_CLIENT,
    STOPPING,
    TOO_LARGE,
    UPLOADS_OFF,
    WRONG_MEDIA_TYPE,
    WRONG_TOKEN,
    ApiError,
    SpeechFacts,
    SpeechRequest,
    answer_error,
    read_request,
    speak,
)
from myxtts.serving.sounds import FORMATS
from myxtts.serving.voices import Voices, clone_upload

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.inference.voices import Voice

_log = logging.getLogger(__name__)

FACTS = "myxtts.facts"
"""The key in a request's scope under which a route leaves what its line in the log shall add."""
OPEN_PATHS = ("/", "/healthz")
"""They need no token: they hold nothing to protect, and a browser cannot send one at first."""

_NOT_ANSWERED = "-"


class Gate:
    """Lets requests through that bring the token and call the server by one of its names; logs each when it has ended.

    Without a token (None) the names keep a web page out that has pointed its own name at the loopback address; with None for
    these, any will do. A client with too many wrong tokens is told to wait, and the right token is let in all the same: somebody
    else may have it behind the same address.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Sequence[str] | None,
        failures: RateLimiter,
        advice: str = "start the server with a token",
    ):
        self._app, self._hosts, self._failures, self._advice = app, hosts, failures, advice
        self._expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = _NOT_ANSWERED

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        scope[FACTS] = []
        try:
            self._check(scope)
            await self._app(scope, receive, note_status)
        except ApiError as error:
            await answer_error(error)(scope, receive, note_status)
        except asyncio.CancelledError:
            # So uvicorn ends what is still there when it stops: with an answer that is not JSON, and a traceback in the log.
            if status == _NOT_ANSWERED:
                await answer_error(ApiError(STOPPING, BUSY))(scope, receive, note_status)
        finally:
            # Quoted: a path may hold line breaks.
            what = f"{find_client(scope)} {scope['method']} {urllib.parse.quote(scope['path'][:100])} {status}"
            _log.info(", ".join([f"{what} in {time.perf_counter() - started:.2f} s", *scope[FACTS]]))

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name, _, port = host.rpartition(":")
        if self._hosts is not None and (name if port.isdecimal() else host).strip("[]").lower() not in self._hosts:
            raise ApiError(
                f"This server must be called {self._hosts[0]}, but the request is for {host[:80]!r}. Use that name, or {self._advice}.",
                FOREIGN_HOST,
            )
        if self._expected is None or scope["path"] in OPEN_PATHS:
            return
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        is_right = hmac.compare_digest(token.lstrip(" ").encode(errors="surrogateescape"), self._expected)
        if not (is_right and scheme.lower() == "bearer"):
            self._failures.count(find_client(scope))
            raise ApiError(
                "A request must bring this server's token in the header `Authorization: Bearer TOKEN`, but "
                + ("brings another one." if given else "brings none."),
                WRONG_TOKEN,
            )


def find_client(scope: Scope) -> str:
    """The address a request comes from."""
    return str(scope["client"][0]) if scope.get("client") else ""


def check_media_type(request: Request, *accepted: str) -> None:
    """Raises `ApiError` unless the Content-Type begins with one of these.

    What a web page of another site may send without asking has other types: such a page shall not make this server work.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not any(given == each or (each.endswith("/") and given.startswith(each)) for each in accepted):
        wanted = " or ".join(f"{each}*" if each.endswith("/") else each for each in accepted)
        raise ApiError(f"The Content-Type must be {wanted}, but is {given[:80] or 'missing'}.", WRONG_MEDIA_TYPE)


async def read_body(request: Request, most_bytes: int, within_s: float) -> bytes:
    """The body of a request. Raises `ApiError` as soon as it is known to be too large, and for one that does not come."""
    announced = request.headers.get("content-length", "0")
    too_large = ApiError(f"The body may have {most_bytes} bytes at most, but has more. Send less at a time.", TOO_LARGE)
    if announced.isdecimal() and int(announced) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(f"A body must arrive within {within_s:g} s, but did not. Send it again.", SLOW_CLIENT) from error
    return bytes(body)


PIECE_BYTES = 16 << 10
"""Sent at a time: little enough that a slow client takes it within the time that it may take nothing."""


class Service:
    """The routes, and what they share; the synthesizer is asked for facts, its work is done in the thread."""

    def __init__(
        self,
        thread: ModelThread[Synthesizer],
        synthesizer: Synthesizer,
        voices: dict[str, Voice],
        limits: ServingLimits,
        *,
        allow_upload: bool,
        first_codes: int,
    ):
        self.thread, self.limits, self.allow_upload, self.first_codes = thread, limits, allow_upload, first_codes
        self.batch, self.metrics = synthesizer.batch, metrics.ServingMetrics()
        self.languages, self.rate_hz = synthesizer.languages, synthesizer.rate_hz
        self.voices = Voices(voices)
        self.limiter = RateLimiter(limits.requests_per_minute)
        self.failures = RateLimiter(limits.requests_per_minute, "wrong tokens")
        self.places = Places(limits.queue)
        self.uploads = Places(limits.uploads, "recordings")

    @contextlib.asynccontextmanager
    async def run(
        self, work: Callable[[Synthesizer], Generator[Result | None, None, None]], client: str, receive: Receive
    ) -> AsyncIterator[Job[Synthesizer, Result]]:
        """A job in the queue for the time of the block, cancelled at its end or when the client goes."""

        async def cancel_when_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            job.cancel()

        with self.places.take(client):
            job = self.thread.submit(Job(work))
            listener = asyncio.create_task(cancel_when_gone())
            try:
                yield job
            except JobCancelled:
                if listener.done():
                    raise ClientDisconnect from None
                raise ApiError(STOPPING, BUSY) from None
            finally:
                job.cancel()
                listener.cancel()

    async def check_health(self, request: Request) -> Response:
        """GET /healthz: that the server is there, and how many requests it has; 503 once it has no model any more."""
        status, code = ("failed", 503) if self.thread.has_died else ("ok", 200)
        return JSONResponse({"status": status, "requests": self.places.taken}, code)

    async def show_metrics(self, request: Request) -> Response:
        """GET /metrics: for Prometheus."""
        return Response(self.metrics.write(self.batch, self.places.taken), media_type=metrics.MEDIA_TYPE)

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models."""
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "myxtts"} for name in MODELS]
        return JSONResponse({"object": "list", "data": models})

    async def list_voices(self, request: Request) -> Response:
        """GET /v1/audio/voices: the voices there are, and how they can be used."""
        return JSONResponse(
            {
                "object": "list",
                "data": [{"id": name, "object": "voice"} for name in self.voices.names],
                "languages": list(self.languages),
                "response_formats": list(FORMATS),
                "max_text": self.limits.text_characters,
                "can_upload": self.allow_upload,
            }
        )

    async def add_voice(self, request: Request) -> Response:
        """POST /v1/audio/voices: a new voice, from a recording."""
        client = find_client(request.scope)
        self.limiter.count(client)
        if not self.allow_upload:
            raise ApiError(
                "This server takes no recordings. Its operator can allow them with --allow-upload.", UPLOADS_OFF
            )
        check_media_type(request, "audio/", "application/octet-stream")
        if request.query_params.get("consent") != "yes":
            raise ApiError(
                "A voice belongs to its speaker: ask for consent first, and say so with ?consent=yes.", param="consent"
            )
        self.places.check(client)
        with self.uploads.take(client):
            recording = await read_body(request, self.limits.upload_bytes, self.limits.body_s)
            async with self.run(partial(clone_upload, recording=recording), client, request.receive) as job:
                voice = await anext(job)
        return JSONResponse({"id": self.voices.keep_upload(voice), "object": "voice"}, 201)


class SpeechRoute:
    """POST /v1/audio/speech: a text as sound."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        request, client = Request(scope, receive), find_client(scope)
        facts, outcome = SpeechFacts(), "cut_off"
        try:
            service.limiter.count(client)
            check_media_type(request, "application/json")
            # Taken only when all has come: a body that does not come shall hold no place, and such a body is small.
            service.places.check(client)
            body = await read_body(request, service.limits.body_bytes, service.limits.body_s)
            speech = read_request(body, languages=service.languages, most_characters=service.limits.text_characters)
            kind = f"{speech.format_name}{', streamed' if speech.is_streamed else ''}"
            scope[FACTS] += [f"{len(speech.text)} characters", speech.language, kind]
            voice = service.voices.find(speech.voice)
            work = partial(speak, speech=speech, voice=voice, facts=facts, first_codes=service.first_codes)
            async with service.run(work, client, receive) as job:
                outcome = await self._answer(job, speech, facts, send)
        except Exception as error:
            is_left = isinstance(error, ClientDisconnect)
            outcome = (
                "left" if is_left else "failed" if answer_error(error).status_code == INTERNAL.status else "refused"
            )
            raise
        finally:
            service.metrics.count(outcome, facts)
            scope[FACTS] += [facts.describe()] if scope[FACTS] else []

    async def _answer(self, job: Job[Synthesizer, bytes], speech: SpeechRequest, facts: SpeechFacts, send: Send) -> str:
        """Sends the sound, and says how it ended."""
        # Before the status is sent: until the first sound, everything that goes wrong can be told.
        part: bytes | None = await anext(job)
        rate_hz = speech.sound.choose_rate(self._service.rate_hz)
        headers = {"content-type": speech.sound.media_type, "x-sample-rate": str(rate_hz), "cache-control": "no-store"}
        if not speech.is_streamed:
            headers["content-length"] = str(len(part or b""))
        await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})
        waited_s = 0.0  # that the client has kept the server waiting so far
        # What goes wrong now cannot be told any more. The answer stays without its end, so the client sees that it is not whole.
        with contextlib.suppress(JobCancelled, TimeoutError):
            while part is not None:
                started = time.perf_counter() - waited_s
                # A client that takes much longer than who listens while it comes is left.
                async with asyncio.timeout(self._service.limits.send_s + facts.seconds - waited_s):
                    for first in range(0, len(part), PIECE_BYTES):
                        piece = part[first : first + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                waited_s = time.perf_counter() - started
                # One that is whole was all: its client may go as soon as it has it, and was not cut off.
                part = await anext(job, None) if speech.is_streamed else None
            await send({"type": "http.response.body"})
            return "spoken"
        return "cut_off"


def make_page() -> Response:
    """GET /: the page on which a person types a text and listens, with headers that let it load nothing but itself."""
    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    digests = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digests[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digests['style']}'; script-src 'sha256-{digests['script']}'; connect-src 'self'; "
        "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    others = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, **others})


def build_application(service: Service, *, token: str | None, hosts: Sequence[str] | None) -> ASGIApp:
    """The application that a server runs; for token and hosts see `Gate`."""
    app = Starlette(
        routes=[
            Route("/", make_page(), methods=["GET"]),
            Route("/healthz", service.check_health, methods=["GET"]),
            Route("/metrics", service.show_metrics, methods=["GET"]),
            Route("/v1/models", service.list_models, methods=["GET"]),
            Route("/v1/audio/voices", service.list_voices, methods=["GET"]),
            Route("/v1/audio/voices", service.add_voice, methods=["POST"]),
            Route("/v1/audio/speech", SpeechRoute(service), methods=["POST"]),
        ],
        exception_handlers={
            # What a client can mend stands by its own class: as an `Exception` alone its traceback, and with it the text, would be logged.
            **dict.fromkeys(
                (ApiError, HTTPException, SpeechRequestError, VoiceError, Exception),
                lambda request, error: answer_error(error),
            ),
            # Nobody reads it; the number is what the log shows.
            ClientDisconnect: lambda request, error: Response(status_code=499),
        },
    )
    return Gate(app, token=token, hosts=hosts, failures=service.failures)
