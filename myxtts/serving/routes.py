"""What the server answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from myxtts.serving.access import find_client
from myxtts.serving.bodies import check_media_type, read_body
from myxtts.serving.errors import BadRequestError, StoppingError, UploadsOffError
from myxtts.serving.limits import Places, RateLimiter, ServingLimits
from myxtts.serving.model_thread import Job, JobCancelled, ModelThread
from myxtts.serving.request_log import FACTS
from myxtts.serving.sound_formats import FORMATS
from myxtts.serving.speech_order import MODELS, SpeechOrder, read_order
from myxtts.serving.speech_work import SpeechFacts, clone_recording, speak_order
from myxtts.serving.voice_shelf import VoiceShelf

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

Result = TypeVar("Result")

PIECE_BYTES = 16 << 10
"""Sent at a time: little enough that a slow client takes it within the time that it may take nothing."""

CONSENT_GIVEN = "yes"


@dataclass(frozen=True)
class Service:
    """What the routes share."""

    thread: ModelThread[Synthesizer]
    languages: tuple[str, ...]
    rate_hz: int
    shelf: VoiceShelf
    limits: ServingLimits
    limiter: RateLimiter
    failures: RateLimiter
    places: Places
    uploads: Places
    allow_upload: bool

    @contextlib.asynccontextmanager
    async def run(
        self, work: Callable[[Synthesizer], Generator[Result | None, None, None]], client: str, receive: Receive
    ) -> AsyncIterator[Job[Synthesizer, Result]]:
        """A job in the queue for the time of the block, cancelled at its end or when the client goes."""
        with self.places.take(client):
            job = self.thread.submit(Job(work))
            listener = asyncio.create_task(_cancel_when_gone(job, receive))
            try:
                yield job
            except JobCancelled:
                if listener.done():
                    raise ClientDisconnect from None
                raise StoppingError from None
            finally:
                job.cancel()
                listener.cancel()


async def _cancel_when_gone(job: Job[Synthesizer, Result], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    job.cancel()


class SpeechRoute:
    """POST /v1/audio/speech: a text as sound."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        request, client = Request(scope, receive), find_client(scope)
        service.limiter.count(client)
        check_media_type(request, "application/json")
        # Taken only when all has come: a body that does not come shall hold no place, and such a body is small.
        service.places.check(client)
        body = await read_body(request, service.limits.body_bytes, service.limits.body_s)
        order = read_order(body, languages=service.languages, most_characters=service.limits.text_characters)
        voice = service.shelf.find(order.voice)
        facts = SpeechFacts()
        work = partial(speak_order, order=order, voice=voice, facts=facts)
        try:
            async with service.run(work, client, receive) as job:
                await self._answer(job, order, facts, send)
        finally:
            kind = f"{order.format_name}{', streamed' if order.is_streamed else ''}"
            scope[FACTS] += [f"{len(order.text)} characters", order.language, kind, facts.describe()]

    async def _answer(self, job: Job[Synthesizer, bytes], order: SpeechOrder, facts: SpeechFacts, send: Send) -> None:
        # Before the status is sent: until the first sound, everything that goes wrong can be told.
        first = await job.receive()
        rate_hz = order.sound.choose_rate(self._service.rate_hz)
        headers = {"content-type": order.sound.media_type, "x-sample-rate": str(rate_hz), "cache-control": "no-store"}
        if not order.is_streamed:
            headers["content-length"] = str(len(first))
        await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})
        # Neither can be told any more. The answer stays without its end, so the client sees that it is not whole.
        with contextlib.suppress(JobCancelled, TimeoutError):
            waited_s = await self._send(first, facts, 0.0, send)
            async for part in job:
                waited_s = await self._send(part, facts, waited_s, send)
            await send({"type": "http.response.body"})

    async def _send(self, part: bytes, facts: SpeechFacts, waited_s: float, send: Send) -> float:
        """Sends a part, and gives the time that the client has kept the server waiting so far.

        Raises `TimeoutError` for one that takes much longer than who listens while it comes.
        """
        started = time.perf_counter() - waited_s
        async with asyncio.timeout(self._service.limits.send_s + facts.seconds - waited_s):
            for first in range(0, len(part), PIECE_BYTES):
                piece = part[first : first + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        return time.perf_counter() - started


class VoicesRoute:
    """GET /v1/audio/voices: the voices there are. POST: a new one, from a recording."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            response = await self._upload(Request(scope, receive), receive)
        else:
            response = self._list()
        await response(scope, receive, send)

    def _list(self) -> Response:
        service = self._service
        return JSONResponse(
            {
                "object": "list",
                "data": [{"id": name, "object": "voice"} for name in service.shelf.names],
                "languages": list(service.languages),
                "response_formats": list(FORMATS),
                "max_text": service.limits.text_characters,
                "can_upload": service.allow_upload,
            }
        )

    async def _upload(self, request: Request, receive: Receive) -> Response:
        service, client = self._service, find_client(request.scope)
        service.limiter.count(client)
        if not service.allow_upload:
            raise UploadsOffError("This server takes no recordings. Its operator can allow them with --allow-upload.")
        check_media_type(request, "audio/", "application/octet-stream")
        if request.query_params.get("consent") != CONSENT_GIVEN:
            raise BadRequestError(
                "A voice belongs to its speaker: ask for consent first, and say so with ?consent=yes.", param="consent"
            )
        service.places.check(client)
        with service.uploads.take(client):
            recording = await read_body(request, service.limits.upload_bytes, service.limits.body_s)
            async with service.run(partial(clone_recording, recording=recording), client, receive) as job:
                voice = await job.receive()
        return JSONResponse({"id": service.shelf.keep_upload(voice), "object": "voice"}, 201)


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "myxtts"} for name in MODELS]
    return JSONResponse({"object": "list", "data": models})


class HealthRoute:
    """GET /healthz: that the server is there, and how many requests it has; 503 once it has no model any more."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self._service.places.taken
        if self._service.thread.has_died:
            response = JSONResponse({"status": "failed", "requests": requests}, 503)
        else:
            response = JSONResponse({"status": "ok", "requests": requests})
        await response(scope, receive, send)
