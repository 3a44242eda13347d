"""What an HTTP client or the operator of the server did wrong.

The message of an `ApiError` is sent to whoever asked: it names the way out, and never a path of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from myxtts.errors import UserError

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
