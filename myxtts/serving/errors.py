"""What an HTTP client or the operator of the server did wrong, and how a client is told: as the OpenAI API does, in JSON.

The message of an `ApiError` is sent to whoever asked: it names the way out, and never a path of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

from myxtts.errors import UserError
from myxtts.inference.errors import SpeechRequestError, VoiceError
from myxtts.serving.model_thread import ModelThreadError
from myxtts.text.errors import MissingLanguagePackageError

RETRY_SECONDS = 5
"""When to ask again at a full queue: about as long as a sentence takes on a processor."""


class ServerStartError(UserError):
    """A server that cannot be started as asked: its address, its token, its voices."""


class ErrorKind(NamedTuple):
    """A kind of error, as clients tell them apart."""

    status: int
    code: str | None = None
    type: str = "invalid_request_error"
    retry_after_s: int | None = None
    headers: Mapping[str, str] = {}


BAD_REQUEST = ErrorKind(400)
UNKNOWN_VOICE = ErrorKind(400, "voice_not_found")
WRONG_TOKEN = ErrorKind(401, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
UPLOADS_OFF = ErrorKind(403, "uploads_off")
UNKNOWN_MODEL = ErrorKind(404, "model_not_found")
SLOW_CLIENT = ErrorKind(408, "request_timeout", retry_after_s=RETRY_SECONDS)
TOO_LARGE = ErrorKind(413, "request_too_large")
WRONG_MEDIA_TYPE = ErrorKind(415, "unsupported_media_type")
FOREIGN_HOST = ErrorKind(421, "misdirected_request")
TOO_MANY = ErrorKind(429, "rate_limit_exceeded", "rate_limit_error", RETRY_SECONDS)
INTERNAL = ErrorKind(500, "internal_error", "server_error")
BUSY = ErrorKind(503, "server_busy", "server_error", RETRY_SECONDS)

STOPPING = "This server is about to stop. Try again later."


class ApiError(Exception):
    """A request that is refused, as the client is told.

    Args:
        message: what must be, what is, and what to do.
        param: the field of the request that is meant.
    """

    def __init__(self, message: str, kind: ErrorKind = BAD_REQUEST, *, param: str | None = None):
        super().__init__(message)
        self.kind, self.param = kind, param


PATHS = (
    "POST /v1/audio/speech",
    "GET /v1/audio/voices",
    "POST /v1/audio/voices",
    "GET /v1/models",
    "GET /healthz",
    "GET /",
)


def answer_error(error: Exception) -> Response:
    """The answer that tells a client of an error. What only the operator can mend is told to the log, with its traceback."""
    told = _translate(error)
    kind, headers = told.kind, dict(told.kind.headers)
    if kind.retry_after_s is not None:
        headers["Retry-After"] = str(kind.retry_after_s)
    content = {"message": str(told), "type": kind.type, "param": told.param, "code": kind.code}
    # Half of a character, which JSON may hold and UTF-8 may not, becomes the escape it was sent as.
    body = json.dumps({"error": content}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, kind.status, headers=headers, media_type="application/json")


def _translate(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpeechRequestError | VoiceError):
        return ApiError(str(error))
    if isinstance(error, MissingLanguagePackageError | ModelThreadError):
        return ApiError(str(error), INTERNAL)
    if isinstance(error, HTTPException):
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        message = f"There is nothing here for such a request. There are: {'; '.join(PATHS)}."
        return ApiError(message, ErrorKind(error.status_code, code))
    message = "The server could not do it; its log says why. Try a shorter text, or tell its operator."
    return ApiError(message, INTERNAL)
