"""Errors as clients of the OpenAI API expect them: a JSON object that names the field and the way out."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException
from starlette.responses import Response

from myxtts.inference.errors import SpeechRequestError, VoiceError
from myxtts.serving.errors import ApiError, BadRequestError, InternalError
from myxtts.serving.model_thread import ModelThreadError
from myxtts.text.errors import MissingLanguagePackageError

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
