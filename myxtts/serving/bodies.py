"""Bodies of requests, read within a size and a time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from myxtts.serving.errors import SlowClientError, TooLargeError, WrongMediaTypeError


def check_media_type(request: Request, *accepted: str) -> None:
    """Raises `WrongMediaTypeError` unless the Content-Type begins with one of these.

    What a web page of another site may send without asking has other types: such a page shall not make this server work.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not any(given == each or (each.endswith("/") and given.startswith(each)) for each in accepted):
        wanted = " or ".join(f"{each}*" if each.endswith("/") else each for each in accepted)
        raise WrongMediaTypeError(f"The Content-Type must be {wanted}, but is {given[:80] or 'missing'}.")


async def read_body(request: Request, most_bytes: int, within_s: float) -> bytes:
    """The body of a request. Raises `TooLargeError` as soon as that is known, and `SlowClientError`."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most_bytes:
        raise _refuse(most_bytes)
    parts, count = [], 0
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                count += len(part)
                if count > most_bytes:
                    raise _refuse(most_bytes)
                parts.append(part)
    except TimeoutError as error:
        raise SlowClientError(f"A body must arrive within {within_s:g} s, but did not. Send it again.") from error
    return b"".join(parts)


def _refuse(most_bytes: int) -> TooLargeError:
    return TooLargeError(f"The body may have {most_bytes} bytes at most, but has more. Send less at a time.")
