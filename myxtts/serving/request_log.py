"""One line for each request: who, what, how it ended. Never what was to be said."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from myxtts.serving.access import find_client
from myxtts.serving.error_answers import answer_error
from myxtts.serving.errors import StoppingError

_log = logging.getLogger(__name__)

FACTS = "myxtts.facts"
"""The key in a request's scope under which a route leaves what the line shall add."""

_NOT_ANSWERED = "-"


class RequestLog:
    """Logs each request when it has ended."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = _NOT_ANSWERED

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        scope[FACTS] = []
        try:
            await self._app(scope, receive, note_status)
        except asyncio.CancelledError:
            # So uvicorn ends what is still there when it stops, with an answer that is not JSON.
            if status != _NOT_ANSWERED:
                raise
            await answer_error(StoppingError())(scope, receive, note_status)
        finally:
            # Quoted: a path may hold line breaks.
            what = f"{scope['method']} {urllib.parse.quote(scope['path'][:100])}"
            facts = "".join(f", {fact}" for fact in scope[FACTS])
            elapsed_s = time.perf_counter() - started
            _log.info("%s %s %s in %.2f s%s", find_client(scope), what, status, elapsed_s, facts)
