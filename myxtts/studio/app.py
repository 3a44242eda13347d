"""The pages of the studio and what they ask for: routes, from a request to an answer."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from myxtts.errors import MyXTTSError
from myxtts.files import DiskFullError, parse_json, read_text
from myxtts.reports.pages import open_templates
from myxtts.serving.app import Gate, check_media_type, read_body
from myxtts.serving.limits import RateLimiter, ServingLimits
from myxtts.serving.request import ApiError, answer_error
from myxtts.serving.server import LOOPBACK_NAMES, make_server, take_signals
from myxtts.studio.door import DISK_FULL, FORM_BYTES, FORM_S, Door, explain_disk, receive_file
from myxtts.studio.jobs import Jobs
from myxtts.studio.speaking import Speaking
from myxtts.studio.workspace import Workspace

PAGES = ("recordings", "speak")
LANGUAGES = ("en", "fa")
RATE_LIMIT = 100_000
"""Requests a minute that nobody's own page comes near to."""
WRONG_TOKENS = 30
"""A minute, of one client."""


@functools.cache
def read_words() -> dict[str, tuple[str, ...]]:
    """What the pages say: a key, then the words of each language."""
    lines = read_text(Path(__file__).with_name("words.tsv")).splitlines()
    return {key: tuple(words) for key, *words in (line.split("\t") for line in lines if line)}


class Studio:
    """The routes, and what they share."""

    def __init__(self, workspace: Workspace, *, most_upload_bytes: int = 1 << 31, rehearsal: bool = False):
        self.workspace, self.jobs = workspace, Jobs(workspace.jobs)
        self.flags = ["--rehearsal"] if rehearsal else []
        self.speaking = Speaking(workspace.jobs / "speak.log", self.flags)
        self._most_upload_bytes = most_upload_bytes

    def render(self, request: Request, template: str, **facts: Any) -> HTMLResponse:
        """A page or a part of one, in the language of whoever asks."""
        asked = request.query_params.get("lang", request.cookies.get("lang", ""))
        preferred = "fa" if request.headers.get("accept-language", "").lower().startswith("fa") else "en"
        language = asked if asked in LANGUAGES else preferred
        words, at = read_words(), LANGUAGES.index(language)

        def say(key: str, **values: Any) -> str:
            return words[key][at].format_map(values) if values else words[key][at]

        scripted = {key.removeprefix("js."): texts[at] for key, texts in words.items() if key.startswith("js.")}
        text = open_templates("myxtts.studio").get_template(template).render(
            say=say, language=language, scripted=scripted, pages=PAGES, path=request.url.path, **facts
        )  # fmt: skip
        response = HTMLResponse(text)
        if request.query_params.get("lang") == language:
            response.set_cookie("lang", language, max_age=10**8, samesite="strict")
        return response

    async def show_style(self, request: Request) -> Response:
        """GET /studio.css: our own, and that of charts and players in reports."""
        text = open_templates("myxtts.studio").get_template("studio.css").render()
        return Response(text, media_type="text/css")

    async def show_recordings(self, request: Request) -> Response:
        """GET /recordings."""
        return self.render(request, "recordings.html", recordings=self.workspace.list_recordings())

    async def add_recording(self, request: Request) -> Response:
        """POST /recordings?title=...: a sound file, as the body."""
        check_media_type(request, "application/octet-stream")
        incoming = self.workspace.name_incoming()
        await receive_file(request, incoming, self._most_upload_bytes)
        given = request.query_params
        try:
            recording = await asyncio.to_thread(
                self.workspace.keep_recording, incoming, given.get("title", ""), given.get("text", "")
            )
        finally:
            incoming.unlink(missing_ok=True)
        response = self.render(request, "recording.html", recording=recording)
        response.status_code = 201
        return response

    async def remove_recording(self, request: Request) -> Response:
        """DELETE /recordings/ID."""
        self.workspace.remove_recording(request.path_params["id"])
        return HTMLResponse("")

    async def play_recording(self, request: Request) -> Response:
        """GET /recordings/ID/sound."""
        return FileResponse(self.workspace.find_recording(request.path_params["id"])[1])

    async def show_speak(self, request: Request) -> Response:
        """GET /speak."""
        models, recordings = self.workspace.list_models(), self.workspace.list_recordings()
        chosen = request.query_params.get("model", "")
        return self.render(request, "speak.html", models=models, recordings=recordings, chosen=chosen)

    async def list_voices(self, request: Request) -> Response:
        """GET /speak/voices?model=...: what a model can do. Loads it."""
        return await self.speaking.list_voices(self.workspace.find_model(request.query_params.get("model", "")))

    async def speak(self, request: Request) -> Response:
        """POST /speak: JSON as for `POST /v1/audio/speech`, with a model and perhaps a reference, a recording, instead of a voice."""
        check_media_type(request, "application/json")
        try:
            fields = parse_json(await read_body(request, FORM_BYTES, FORM_S))
        except ValueError as error:
            raise ApiError(f"The body must be JSON, but {error}") from None
        if not isinstance(fields, dict):
            raise ApiError("The body must be a JSON object, but is not.")
        model, reference = self.workspace.find_model(str(fields.pop("model", ""))), str(fields.pop("reference", ""))
        path = self.workspace.find_recording(reference)[1] if reference else None
        return await self.speaking.speak(model, fields, path)

    def list_routes(self) -> Sequence[Route | Mount]:
        def at(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
            return Route(path, answer, methods=[method])

        return [
            Route("/", RedirectResponse("/recordings"), methods=["GET"]),
            at("/studio.css", self.show_style),
            Mount("/static", StaticFiles(packages=[("myxtts.studio", "static")])),
            at("/recordings", self.show_recordings),
            at("/recordings", self.add_recording, "POST"),
            at("/recordings/{id}", self.remove_recording, "DELETE"),
            at("/recordings/{id}/sound", self.play_recording),
            at("/speak", self.show_speak),
            at("/speak", self.speak, "POST"),
            at("/speak/voices", self.list_voices),
        ]


def answer_failure(request: Request, error: Exception) -> Response:
    """The answer that tells a page of an error, where it happened."""
    if isinstance(error, DiskFullError):
        error = ApiError(str(error), DISK_FULL)
    elif isinstance(error, MyXTTSError):
        error = ApiError(str(error))
    elif isinstance(error, OSError):
        error = explain_disk(error)
    return answer_error(error)


def build_studio(studio: Studio, *, token: str, hosts: Sequence[str] | None) -> ASGIApp:
    """The application that a server runs; for hosts see `Gate`."""
    app = Starlette(
        routes=studio.list_routes(),
        exception_handlers={
            **dict.fromkeys((ApiError, MyXTTSError, HTTPException, OSError, Exception), answer_failure),
            ClientDisconnect: lambda request, error: Response(status_code=499),
        },
    )
    failures = RateLimiter(WRONG_TOKENS, "wrong tokens")
    return Gate(Door(app, token=token, failures=failures), token=None, hosts=hosts, failures=failures)


def run_studio(listener: socket.socket, studio: Studio, *, token: str, host: str) -> None:
    """Serves until SIGINT or SIGTERM. Commands that were started go on; the model that speaks does not."""
    is_local = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
    app = build_studio(studio, token=token, hosts=(host.lower(), *LOOPBACK_NAMES) if is_local else None)
    listener.listen()
    server = make_server(app, ServingLimits(requests_per_minute=RATE_LIMIT))

    async def serve() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            await studio.speaking.stop()

    with take_signals():
        asyncio.run(serve())
