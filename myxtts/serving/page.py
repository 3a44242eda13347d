"""GET /: the page on which a person types a text and listens."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

PAGE_NAME = "page.html"


class Page:
    """The page, with headers that let it load nothing but itself."""

    def __init__(self) -> None:
        text = resources.files(__package__).joinpath(PAGE_NAME).read_text(encoding="utf-8")
        self._response = HTMLResponse(
            text,
            headers={
                "Content-Security-Policy": make_policy(text),
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope, receive, send)


def make_policy(text: str) -> str:
    """The Content-Security-Policy under which exactly the style and the script in a page are used."""
    digests = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digests[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src 'sha256-{digests['style']}'",
            f"script-src 'sha256-{digests['script']}'",
            "connect-src 'self'",
            "media-src blob:",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
