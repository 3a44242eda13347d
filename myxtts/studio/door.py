"""Who may come in, and what may be brought: the token in the address, then a cookie; no other origin; bounded bodies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hmac
import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers, ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from myxtts.serving.app import check_media_type, find_client, read_body
from myxtts.serving.limits import RateLimiter
from myxtts.serving.request import BAD_REQUEST, SLOW_CLIENT, TOO_LARGE, ApiError, ErrorKind
from myxtts.units import format_bytes

FOREIGN_ORIGIN = ErrorKind(403, "foreign_origin")
NOT_FOUND = ErrorKind(404, "not_found")
CONFLICT = ErrorKind(409, "conflict")
DISK_FULL = ErrorKind(507, "disk_full", "server_error")
"""Kinds of refusals that only a studio knows."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self' blob:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STALLED_BODY_S = 30.0
"""That a body may stand still; one that comes may take as long as it needs."""
FORM_BYTES = 256 << 10
FORM_S = 30.0
MOST_FIELDS = 1000

_HEAD = '<!doctype html><meta charset="utf-8"><title>MyXTTS studio</title><link rel="icon" href="data:,">'
_ENTER = f'{_HEAD}<meta http-equiv="refresh" content="0;url=/">'
"""Not a redirection: followed from another site's link, the browser would keep the cookie back."""
_REFUSAL = (
    f"{_HEAD}<p>Open the address that <code>myxtts studio</code> "
    'has printed: it holds the token.</p><p dir="rtl" lang="fa">نشانی‌ای را باز کنید که <code>myxtts studio</code> چاپ کرده است: رمز در آن است.</p>'
)


class Door:
    """Lets requests in that bring the token, and changes of anything only from its own pages."""

    def __init__(self, app: ASGIApp, *, token: str, failures: RateLimiter):
        self._app, self._token, self._failures = app, token.encode(), failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        cookie = f"myxtts-studio-{(scope.get('server') or ('', 0))[1]}"

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower(), value) for name, value in HEADERS.items()]
                given = Headers(raw=message["headers"])
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in own if n not in given),
                ]
            await send(message)

        answer: ASGIApp = self._app
        given = request.query_params.get("token")
        if request.method == "GET" and scope["path"] == "/" and given is not None and self._is_right(given):
            page = HTMLResponse(_ENTER)
            page.set_cookie(cookie, given, httponly=True, samesite="strict")
            answer = page
        elif not self._is_right(request.cookies.get(cookie, "")):
            self._failures.count(find_client(scope))
            answer = HTMLResponse(_REFUSAL, 401)
        elif request.method not in ("GET", "HEAD"):
            # Other ports of this machine are the same site for a cookie, but not the same origin.
            own, origin = f"http://{request.headers.get('host')}", request.headers.get("origin")
            if origin != own:
                raise ApiError(f"Changes must come from the studio's own pages ({own}), but this comes from {str(origin)[:80]!r}.", FOREIGN_ORIGIN)  # fmt: skip
        await answer(scope, receive, add_headers)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)


async def read_fields(request: Request) -> ImmutableMultiDict[str, str]:
    """The fields of a form. Raises `ApiError`."""
    check_media_type(request, "application/x-www-form-urlencoded")
    try:
        text = (await read_body(request, FORM_BYTES, FORM_S)).decode()
        return ImmutableMultiDict(urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise ApiError(f"The fields of a form must be UTF-8, {MOST_FIELDS} at most: {error}.") from None


async def receive_file(request: Request, path: Path, most_bytes: int) -> None:
    """Writes the body of a request to a new file as it comes. Whatever goes wrong, there is no file. Raises `ApiError`."""
    announced = request.headers.get("content-length", "0")
    too_large = ApiError(
        f"A recording may have {format_bytes(most_bytes)} at most, but this one has more. Cut it into parts, or start the studio "
        "with a larger --max-upload.",
        TOO_LARGE,
    )
    if announced.isdecimal() and int(announced) > most_bytes:
        raise too_large
    descriptor, size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 0
    try:
        # What nobody holds is of a process that was killed.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parts = request.stream()
        while True:
            async with asyncio.timeout(STALLED_BODY_S):
                part = await anext(parts, None)
            if part is None:
                break
            if (size := size + len(part)) > most_bytes:
                raise too_large
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        if not size:
            raise ApiError("A recording must have bytes, but this one has none.", BAD_REQUEST)
    except BaseException as error:
        path.unlink()
        if isinstance(error, TimeoutError):
            raise ApiError(f"Nothing came for {STALLED_BODY_S:g} s. Send it again.", SLOW_CLIENT) from None
        if isinstance(error, OSError):
            raise explain_disk(error) from error
        raise
    finally:
        os.close(descriptor)


def explain_disk(error: OSError) -> ApiError:
    """What the page is told where something could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiError("The disk of the workspace is full. Make room there, then try again: nothing was changed.", DISK_FULL)  # fmt: skip
    return ApiError(f"The workspace cannot be written: {error.strerror}.", DISK_FULL)


def refuse_unknown(what: str) -> ApiError:
    """For a name that nothing has; also for one that no file may have."""
    return ApiError(f"There is no such {what}.", NOT_FOUND)
