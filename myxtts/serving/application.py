"""The routes, their errors, and what stands before them, put together."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from myxtts.serving.access import AccessGuard
from myxtts.serving.error_answers import answer_error, translate_error, translate_http_error
from myxtts.serving.errors import ApiError
from myxtts.serving.page import Page
from myxtts.serving.request_log import RequestLog
from myxtts.serving.routes import HealthRoute, Service, SpeechRoute, VoicesRoute, list_models


def build_application(service: Service, *, token: str | None, hosts: Sequence[str] | None) -> ASGIApp:
    """The application that a server runs.

    Args:
        service: what its routes share.
        token: that clients must bring; None asks for none.
        hosts: names under which it may be called; None allows any.
    """
    app = Starlette(
        routes=[
            Route("/", Page(), methods=["GET"]),
            Route("/healthz", HealthRoute(service), methods=["GET"]),
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/audio/voices", VoicesRoute(service), methods=["GET", "POST"]),
            Route("/v1/audio/speech", SpeechRoute(service), methods=["POST"]),
        ],
        middleware=[Middleware(AccessGuard, token=token, hosts=hosts, failures=service.failures)],
        exception_handlers={
            ApiError: _answer_exception,
            HTTPException: _answer_http_exception,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_exception,
        },
    )
    return RequestLog(app)


def _answer_exception(request: Request, error: Exception) -> Response:
    return answer_error(translate_error(error))


def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer_error(translate_http_error(error))


def _answer_nobody(request: Request, error: Exception) -> Response:
    # Nobody reads it; the number is what the log shows.
    return Response(status_code=499)
