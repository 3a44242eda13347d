"""The JSON body of a request for speech -> a request that can be carried out, or an error that says what to change;
and carrying it out."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.responses import Response

from myxtts.config.settings import nearest_name
from myxtts.errors import (
    MissingLanguagePackageError,
    SpeechRequestError,
    SpeechSettingError,
    UnsupportedLanguageError,
    UserError,
    VoiceError,
)
from myxtts.inference.speech import SpeechChunk, SpeechSettings, check_text
from myxtts.inference.voices import Voice
from myxtts.serving.model_thread import ModelThreadError
from myxtts.serving.sounds import FORMATS, SoundFormat, encode_stream, encode_whole
from myxtts.text.normalise import resolve_language

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer


ASK_AGAIN = {"Retry-After": "5"}
"""About as long as a sentence takes on a processor."""


class ServerStartError(UserError):
    """A server that cannot be started as asked: its address, its token, its voices."""


class ErrorKind(NamedTuple):
    """A kind of error, as clients tell them apart."""

    status: int
    code: str | None = None
    type: str = "invalid_request_error"
    headers: Mapping[str, str] = {}


BAD_REQUEST = ErrorKind(400)
UNKNOWN_VOICE = ErrorKind(400, "voice_not_found")
WRONG_TOKEN = ErrorKind(401, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
UPLOADS_OFF = ErrorKind(403, "uploads_off")
UNKNOWN_MODEL = ErrorKind(404, "model_not_found")
SLOW_CLIENT = ErrorKind(408, "request_timeout", headers=ASK_AGAIN)
TOO_LARGE = ErrorKind(413, "request_too_large")
WRONG_MEDIA_TYPE = ErrorKind(415, "unsupported_media_type")
FOREIGN_HOST = ErrorKind(421, "misdirected_request")
TOO_MANY = ErrorKind(429, "rate_limit_exceeded", "rate_limit_error", ASK_AGAIN)
INTERNAL = ErrorKind(500, "internal_error", "server_error")
BUSY = ErrorKind(503, "server_busy", "server_error", ASK_AGAIN)

STOPPING = "This server is about to stop. Try again later."


class ApiError(Exception):
    """A request that is refused, as the client is told; `param` is the field of the request that is meant."""

    def __init__(self, message: str, kind: ErrorKind = BAD_REQUEST, *, param: str | None = None):
        super().__init__(message)
        self.kind, self.param = kind, param


PATHS = "POST /v1/audio/speech; GET /v1/audio/voices; POST /v1/audio/voices; GET /v1/models; GET /healthz; GET /metrics; GET /"


def answer_error(error: Exception) -> Response:
    """The answer that tells a client of an error. What only the operator can mend is told to the log, with its traceback."""
    kind, message = INTERNAL, str(error)
    param: str | None = None
    if isinstance(error, ApiError):
        kind, param = error.kind, error.param
    elif isinstance(error, SpeechRequestError | VoiceError):
        kind, param = BAD_REQUEST, "voice" if isinstance(error, VoiceError) else "input"
    elif isinstance(error, HTTPException):
        kind = ErrorKind(error.status_code, "method_not_allowed" if error.status_code == 405 else "not_found")
        message = f"There is nothing here for such a request. There are: {PATHS}."
    elif not isinstance(error, MissingLanguagePackageError | ModelThreadError):
        message = "The server could not do it; its log says why. Try a shorter text, or tell its operator."
    content = {"message": message, "type": kind.type, "param": param, "code": kind.code}
    # Half of a character, which JSON may hold and UTF-8 may not, becomes the escape it was sent as.
    body = json.dumps({"error": content}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, kind.status, headers=kind.headers, media_type="application/json")


MOST_RETRIES = 8
"""Of a request. Each is another take of the whole sentence, beside what others ask for."""
MODELS = ("myxtts", "tts-1", "tts-1-hd")
"""Names of the one model: its own, and those that some clients cannot be talked out of."""

_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "float": ("a number", (int, float)),
    "int": ("a whole number", (int,)),
    "str": ("a text", (str,)),
    "bool": ("true or false", (bool,)),
}
SETTINGS = {each.name: str(each.type).split(" ")[0] for each in fields(SpeechSettings)}
"""Fields that are settings of the same name -> their types."""
FIELDS = {
    **dict.fromkeys(("model", "input", "voice", "language", "response_format"), "str"),
    "stream": "bool",
    "stream_format": "str",
    **SETTINGS,
}


@dataclass(frozen=True)
class SpeechRequest:
    """What is to be said, and how it is to be sent."""

    text: str
    voice: str
    language: str
    format_name: str
    is_streamed: bool
    settings: SpeechSettings

    @property
    def sound(self) -> SoundFormat:
        return FORMATS[self.format_name]


def read_request(body: bytes, *, languages: Sequence[str], most_characters: int) -> SpeechRequest:
    """The request in a body: JSON with the fields of the OpenAI API, and those of `FIELDS` that are ours."""
    given = _read_fields(body)
    if (model := given.get("model", MODELS[0])) not in MODELS:
        told = f"model must be one of {', '.join(MODELS)}, but is {model[:80]!r}. Leave it out, or see GET /v1/models."
        raise ApiError(told, UNKNOWN_MODEL, param="model")
    for name, what in (("input", "the text to say"), ("voice", "a voice of GET /v1/audio/voices")):
        if name not in given:
            raise ApiError(f"A request must have {name}, {what}, but has not.", param=name)
    text = given["input"]
    if len(text) > most_characters:
        told = f"input may have {most_characters} characters at most, but has {len(text)}. Send it in parts."
        raise ApiError(told, TOO_LARGE, param="input")
    language = choose_language(given.get("language"), languages)
    format_name, is_streamed = _read_sound(given)
    try:
        check_text(text, language)
        settings = SpeechSettings(**{name: given[name] for name in SETTINGS if name in given})
    except SpeechSettingError as error:
        raise ApiError(str(error), param=error.name) from error
    except SpeechRequestError as error:
        raise ApiError(str(error), param="input") from error
    if (settings.retries or 0) > MOST_RETRIES:
        raise ApiError(
            f"retries must be at most {MOST_RETRIES} here, but is {settings.retries}. Ask for fewer: the best of them is sent.",
            param="retries",
        )
    return SpeechRequest(text, given["voice"], language, format_name, is_streamed, settings)


def choose_language(given: str | None, languages: Sequence[str]) -> str:
    """The code of a language the model speaks."""
    if given is None:
        return "en" if "en" in languages else languages[0]
    try:
        language = resolve_language(given)
    except UnsupportedLanguageError as error:
        raise ApiError(str(error), param="language") from error
    if language not in languages:
        raise ApiError(
            f"language must be one that this model was trained on ({', '.join(languages)}), but is {language!r}.",
            param="language",
        )
    return language


def _read_fields(body: bytes) -> dict[str, Any]:
    given = None
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(body)
    if not isinstance(given, dict):
        raise ApiError('The body must be a JSON object, as in {"input": "Hello.", "voice": "Ana"}, but is not.')
    for name, value in list(given.items()):
        if name not in FIELDS:
            near = nearest_name(name, FIELDS)
            hint = f"Did you mean {near}?" if near else f"There are: {', '.join(FIELDS)}."
            raise ApiError(f"There is no field {name[:80]!r}. {hint}", param=name[:80])
        if value is None:
            del given[name]
        elif name == "voice" and isinstance(value, dict) and isinstance(value.get("id"), str):
            given[name] = value["id"]
        elif type(value) not in _KINDS[FIELDS[name]][1]:
            found = {float: f"the number {value}", int: "a number", list: "a list", dict: "an object"}.get(type(value))
            said = found or _KINDS[type(value).__name__][0]
            raise ApiError(f"{name} must be {_KINDS[FIELDS[name]][0]}, but is {said}.", param=name)
    return given


def _read_sound(given: Mapping[str, Any]) -> tuple[str, bool]:
    # OpenAI's own default, which its clients write to files of that name; but what is asked for as a stream must be able to be one.
    usual = "mp3" if "mp3" in FORMATS and not given.get("stream") else "wav"
    name = given.get("response_format", usual)
    if name not in FORMATS:
        raise ApiError(
            f"response_format must be one of {', '.join(FORMATS)}, but is {name[:80]!r}.", param="response_format"
        )
    if given.get("stream_format", "audio") != "audio":
        raise ApiError(
            "stream_format must be audio: the sound itself is streamed, without events around it.",
            param="stream_format",
        )
    can_stream = FORMATS[name].can_stream
    is_streamed = given.get("stream", can_stream)
    if is_streamed and not can_stream:
        streamed = " or ".join(each for each, sound in FORMATS.items() if sound.can_stream)
        raise ApiError(f"To stream, response_format must be {streamed}, but is {name}.", param="stream")
    return name, is_streamed


@dataclass
class SpeechFacts:
    """How a request went, for the log. Written by the model's thread."""

    asked: float = field(default_factory=time.perf_counter)
    waited_s: float | None = None
    """For its first turn."""
    first_sound_s: float | None = None
    """Until it could be sent: with an answer that is sent whole, until all of it was made."""
    seconds: float = 0.0
    """Of speech."""
    unfinished: int = 0
    """Pieces that were cut off because the model did not stop by itself."""

    def note(self, chunk: SpeechChunk, rate_hz: int) -> None:
        self.seconds += len(chunk.samples) / rate_hz
        self.unfinished += chunk.piece is not None and not chunk.piece.stopped

    def describe(self) -> str:
        first = "" if self.first_sound_s is None else f", first sound after {self.first_sound_s:.2f} s"
        waited = "" if self.waited_s is None else f", waited {self.waited_s:.2f} s"
        cut_off = f", pieces cut off: {self.unfinished}" if self.unfinished else ""
        return f"{self.seconds:.2f} s of speech{first}{waited}{cut_off}"


def speak(
    synthesizer: Synthesizer, speech: SpeechRequest, voice: Voice, facts: SpeechFacts, first_codes: int
) -> Generator[bytes | None, None, None]:
    """The bytes of the answer: as the sound is made, or all of them at the end."""

    def take_samples() -> Iterator[NDArray[np.float32]]:
        for chunk in chunks:
            facts.note(chunk, synthesizer.rate_hz)
            yield chunk.samples

    facts.waited_s = time.perf_counter() - facts.asked
    encode, codes = (encode_stream, first_codes) if speech.is_streamed else (encode_whole, None)
    asked = speech.text, voice, speech.language, speech.settings
    # Closed at the end, however it comes, so that the model says no more of it.
    with contextlib.closing(synthesizer.join_batch(*asked, first_codes=codes)) as chunks:
        for part in encode(take_samples(), speech.sound, synthesizer.rate_hz):
            if part is not None and facts.first_sound_s is None:
                facts.first_sound_s = time.perf_counter() - facts.asked
            yield part
