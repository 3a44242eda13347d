"""Who may ask: the token, and the names under which the server may be called."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from myxtts.serving.error_answers import answer_error
from myxtts.serving.errors import ApiError, ForeignHostError, TokenError
from myxtts.serving.limits import RateLimiter

OPEN_PATHS = ("/", "/healthz")
"""The page itself and the health check need no token: they hold nothing to protect, and a browser cannot send one at first."""


class AccessGuard:
    """Lets requests through that bring the token and call the server by one of its names.

    Args:
        app: what is guarded.
        token: of all clients; None asks for none.
        hosts: names of this server; None allows any. Without a token this is what keeps a web page out that has pointed
            its own name at the loopback address.
        failures: counts wrong tokens. A client with too many is told to wait, and the right token is let in all the same:
            somebody else may have it behind the same address.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Sequence[str] | None, failures: RateLimiter):
        self._app, self._hosts, self._failures = app, hosts, failures
        self._expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host", ""))
            if self._expected is not None and scope["path"] not in OPEN_PATHS:
                self._check_token(headers.get("authorization", ""), find_client(scope))
        except ApiError as error:
            await answer_error(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        if self._hosts is not None and _strip_port(host) not in self._hosts:
            raise ForeignHostError(
                f"This server must be called {self._hosts[0]}, but the request is for {host[:80]!r}. Use that name, or "
                "start the server with a token."
            )

    def _check_token(self, given: str, client: str) -> None:
        assert self._expected is not None
        scheme, _, token = given.partition(" ")
        is_right = hmac.compare_digest(token.lstrip(" ").encode(errors="surrogateescape"), self._expected)
        if not (is_right and scheme.lower() == "bearer"):
            self._failures.count(client)
            raise TokenError(
                "A request must bring this server's token in the header `Authorization: Bearer TOKEN`, but "
                + ("brings another one." if given else "brings none.")
            )


def find_client(scope: Scope) -> str:
    """The address a request comes from."""
    return str(scope["client"][0]) if scope.get("client") else ""


def _strip_port(host: str) -> str:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.strip("[]").lower()
