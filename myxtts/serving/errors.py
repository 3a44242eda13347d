"""What an HTTP client or the operator of the server did wrong, and how a client is told: as the OpenAI API does, in JSON.

The message of an `ApiError` is sent to whoever asked: it names the way out, and never a path of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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


class ApiError(Exception):
    """A request that is refused, as the client is told.

    Args:
        message: what must be, what is, and what to do.
        param: the field of the request that is meant.
        retry_after_s: when to ask again, where the kind of error does not say it.
    """

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None):
        super().__init__(message)
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class BadRequestError(ApiError):
    """A body or a field that cannot be used."""


class UnknownVoiceError(ApiError):
    code = "voice_not_found"


class UnknownModelError(ApiError):
    status = 404
    code = "model_not_found"


class TokenError(ApiError):
    """No token, or not the right one."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class UploadsOffError(ApiError):
    """Voices cannot be uploaded to this server."""

    status = 403
    code = "uploads_off"


class ForeignHostError(ApiError):
    """A request under a name that is not this server's: a web page that has pointed its own name here."""

    status = 421
    code = "misdirected_request"


class TooLargeError(ApiError):
    status = 413
    code = "request_too_large"


class WrongMediaTypeError(ApiError):
    status = 415
    code = "unsupported_media_type"


class SlowClientError(ApiError):
    status = 408
    code = "request_timeout"
    retry_after_s = RETRY_SECONDS


class RateLimitError(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retry_after_s = RETRY_SECONDS


class BusyError(ApiError):
    """The queue is full."""

    status = 503
    type = "server_error"
    code = "server_busy"
    retry_after_s = RETRY_SECONDS


class StoppingError(BusyError):
    """The server is about to stop."""

    def __init__(self) -> None:
        super().__init__("This server is about to stop. Try again later.")


class InternalError(ApiError):
    """Something went wrong that the client cannot mend; the log says what."""

    status = 500
    type = "server_error"
    code = "internal_error"


PATHS = (
    "POST /v1/audio/speech",
    "GET /v1/audio/voices",
    "POST /v1/audio/voices",
    "GET /v1/models",
    "GET /healthz",
    "GET /",
)


def answer_error(error: ApiError) -> Response:
    """The answer that tells a client of an error."""
    content = {"message": str(error), "type": error.type, "param": error.param, "code": error.code}
    # Half of a character, which JSON may hold and UTF-8 may not, becomes the escape it was sent as.
    body = json.dumps({"error": content}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, error.status, headers=dict(error.headers), media_type="application/json")


def translate_error(error: Exception) -> ApiError:
    """What a client is told of an error. What only the operator can mend is told to the log, with its traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpeechRequestError | VoiceError):
        return BadRequestError(str(error))
    if isinstance(error, MissingLanguagePackageError | ModelThreadError):
        return InternalError(str(error))
    return InternalError("The server could not do it; its log says why. Try a shorter text, or tell its operator.")


def translate_http_error(error: HTTPException) -> ApiError:
    """What a client is told that asks for something that is not there."""
    refusal = ApiError(f"There is nothing here for such a request. There are: {'; '.join(PATHS)}.")
    refusal.status = error.status_code
    refusal.code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return refusal
