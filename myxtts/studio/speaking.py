"""Speech for the page: `myxtts serve` behind the studio's own door, with the voices of the workspace."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import soundfile
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response, StreamingResponse

from myxtts.audio.reading import read_clip
from myxtts.errors import ClipError
from myxtts.files import parse_json
from myxtts.serving.request import BUSY, ApiError
from myxtts.studio.jobs import JobError, SpeakingServer
from myxtts.units import SAMPLE_RATE_HZ

REFERENCE_S = 30.0
"""Of a recording that a voice is taken from: more does not make it more alike."""
READ_BYTES = 64 << 10
MOST_KEPT = 16
"""Voices of recordings that are not sent again; `serve` keeps more."""
NOT_THERE = "The model that speaks has gone; jobs/speak.log says why. Try again: it is then started anew."


@dataclass(frozen=True)
class ServerAnswer:
    """What the server of the model says, as it comes."""

    status: int
    headers: Headers
    parts: AsyncIterator[bytes]

    async def read(self) -> Any:
        """All of it, which is JSON. Raises `ApiError` where that is a refusal."""
        content = parse_json(b"".join([part async for part in self.parts]))
        if self.status >= 400:
            raise ApiError(content["error"]["message"])
        return content


class Speaking:
    """One model that speaks at a time; another one takes its place."""

    def __init__(self, log: Path, flags: Sequence[str] = ()):
        self._server, self._flags = SpeakingServer(log), flags
        self._kept: dict[str, str] = {}
        # From the model that is asked for to the beginning of its answer: another page may ask for another model.
        self._turn = asyncio.Lock()

    async def list_voices(self, model: str) -> Response:
        """What a model can do, as `GET /v1/audio/voices` has it. Loads it."""
        async with self._turn:
            await self._load(model)
            async with self._ask("GET", "/v1/audio/voices") as answer:
                return JSONResponse(await answer.read())

    async def speak(self, model: str, request: dict[str, Any], reference: Path | None) -> Response:
        """The sound of a request of `POST /v1/audio/speech`, as it is made; in the voice of a recording, where one is given."""
        stack = contextlib.AsyncExitStack()
        async with self._turn:
            await self._load(model)
            if reference is not None:
                request = {**request, "voice": await self._clone(reference)}
            body = json.dumps(request).encode()
            answer = await stack.enter_async_context(self._ask("POST", "/v1/audio/speech", body))

        async def relay() -> AsyncIterator[bytes]:
            async with stack:
                async for part in answer.parts:
                    yield part

        kept = {name: answer.headers[name] for name in ("content-type", "x-sample-rate") if name in answer.headers}
        return StreamingResponse(relay(), answer.status, kept)

    async def stop(self) -> None:
        """Puts the model away, which frees its memory."""
        await self._server.stop()

    async def _load(self, model: str) -> None:
        if self._server.model != model:
            self._kept.clear()
        try:
            await self._server.load(model, self._flags)
        except JobError as error:
            raise ApiError(str(error), BUSY) from None

    async def _clone(self, reference: Path) -> str:
        if (known := self._kept.get(str(reference))) is not None:
            return known
        try:
            samples = await asyncio.to_thread(read_clip, reference, most_seconds=REFERENCE_S)
        except ClipError as error:
            raise ApiError(f"The recording of the voice cannot be used: {error}") from None
        wav = io.BytesIO()
        soundfile.write(wav, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
        path, kind = "/v1/audio/voices?consent=yes", "application/octet-stream"
        async with self._ask("POST", path, wav.getvalue(), kind) as answer:
            voice = str((await answer.read())["id"])
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[str(reference)] = voice
        return voice

    @contextlib.asynccontextmanager
    async def _ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> AsyncIterator[ServerAnswer]:
        headers = {
            "host": f"127.0.0.1:{self._server.port}", "authorization": f"Bearer {self._server.token}", "content-type": kind,
            "content-length": str(len(body)), "connection": "close",
        }  # fmt: skip
        connection, writer = h11.Connection(h11.CLIENT), None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
            asked = h11.Request(method=method, target=path, headers=list(headers.items()))
            for event in (asked, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            await writer.drain()

            async def next_event() -> Any:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    connection.receive_data(await reader.read(READ_BYTES))
                return event

            async def take_parts() -> AsyncIterator[bytes]:
                while isinstance(event := await next_event(), h11.Data):
                    yield bytes(event.data)

            answer = await next_event()
            if not isinstance(answer, h11.Response):
                raise ApiError(NOT_THERE, BUSY)
            yield ServerAnswer(answer.status_code, Headers(raw=list(answer.headers)), take_parts())
        except (OSError, h11.RemoteProtocolError):
            raise ApiError(NOT_THERE, BUSY) from None
        finally:
            if writer is not None:
                writer.close()
