"""What every HTTP service of ours has in common: problem documents (RFC 9457), health, and how it
is run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from runfold.http.metrics import RequestTimes
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    ConfigurationError,
    EventTooLargeError,
    GenerationFailedError,
    InexpressibleError,
    InvalidEventError,
    InvalidIdError,
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    NoModelError,
    NotYetVisibleError,
    RejectedError,
    RevisionNotFoundError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
    UndecidedError,
)

PROBLEM_JSON = "application/problem+json"

_STATUS: Mapping[type[RunfoldError], HTTPStatus] = {
    EventTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    InvalidEventError: HTTPStatus.UNPROCESSABLE_ENTITY,
    InexpressibleError: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidIdError: HTTPStatus.UNPROCESSABLE_ENTITY,
    RunNotFoundError: HTTPStatus.NOT_FOUND,
    RunConflictError: HTTPStatus.CONFLICT,
    RunEndedError: HTTPStatus.CONFLICT,
    SessionNotFoundError: HTTPStatus.NOT_FOUND,
    SessionConflictError: HTTPStatus.CONFLICT,
    SessionEndedError: HTTPStatus.CONFLICT,
    BankNotFoundError: HTTPStatus.NOT_FOUND,
    BankConflictError: HTTPStatus.CONFLICT,
    BankNotEmptyError: HTTPStatus.CONFLICT,
    MemoryNotFoundError: HTTPStatus.NOT_FOUND,
    MemoryConflictError: HTTPStatus.CONFLICT,
    MemoryChangedError: HTTPStatus.CONFLICT,
    RevisionNotFoundError: HTTPStatus.NOT_FOUND,
    NoModelError: HTTPStatus.CONFLICT,
    GenerationFailedError: HTTPStatus.BAD_GATEWAY,
    RejectedError: HTTPStatus.CONFLICT,
    ConfigurationError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotYetVisibleError: HTTPStatus.GATEWAY_TIMEOUT,
    UndecidedError: HTTPStatus.GATEWAY_TIMEOUT,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}

Check = Callable[[], Awaitable[None]]
"""Returns when what it checks is well, raises otherwise."""


def problem(status: HTTPStatus, detail: str, *, type_: str = "about:blank", **members: Any) -> JSONResponse:
    """A problem document; `members` are its extension members."""
    content = {"type": type_, "title": status.phrase, "status": status.value, "detail": detail}
    headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    extensions = {name: value for name, value in members.items() if value is not None}
    return JSONResponse({**content, **extensions}, status, headers, media_type=PROBLEM_JSON)


def problem_of(error: RunfoldError, **members: Any) -> JSONResponse:
    """The problem document of one of our errors; its facts are extension members."""
    status = next(
        (status for kind, status in _STATUS.items() if isinstance(error, kind)),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    facts = {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, str | int | float) and value != ""
    }
    if isinstance(error, InvalidIdError):
        facts["field"] = error.name
    name = type(error).__name__.removesuffix("Error")
    return problem(status, str(error), type_=f"urn:runfold:problem:{name}", **{**facts, **members})


def new_app(title: str, *, ready: Check, **options: Any) -> FastAPI:
    """A FastAPI application whose errors are problem documents, with `/health/live`,
    `/health/ready` and `/metrics`.

    Paths are matched as they were sent and decoded afterwards, so `%2F` in a run's id is not where
    the id ends.
    """
    checks = [Depends(_decode_path_parameters), Depends(_only_known_parameters)]
    app = FastAPI(title=title, dependencies=checks, **options)
    app.add_middleware(RequestTimes)
    app.add_middleware(PathsAsSent)
    app.exception_handler(RunfoldError)(_on_error)
    app.exception_handler(RequestValidationError)(_on_invalid)
    app.exception_handler(HTTPException)(_on_http)

    @app.get("/", include_in_schema=False)
    async def documentation() -> RedirectResponse:
        # Relative, for who stands behind a gateway's path.
        return RedirectResponse("docs")

    @app.get("/health/live", tags=["health"])
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/health/ready", tags=["health"])
    async def is_ready() -> JSONResponse:
        """The servers that this service needs answer."""
        try:
            await ready()
        except RunfoldError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", tags=["health"])
    async def metrics() -> PlainTextResponse:
        """Prometheus' text format."""
        return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return app


class PathsAsSent:
    """ASGI middleware: routes are found by the path before percent-decoding."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


async def _decode_path_parameters(request: Request) -> None:
    for name, value in request.path_params.items():
        request.path_params[name] = unquote(value)


async def _on_error(_: Request, error: RunfoldError) -> JSONResponse:
    return problem_of(error)


async def _on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    fault = error.errors()[0]
    # The first step of a location says where it was looked for: body, query, path. Broken JSON has
    # a position instead.
    field = ".".join(str(step) for step in fault["loc"][1:] if fault["type"] != "json_invalid")
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{field}: {fault['msg']}" if field else fault["msg"],
        field=field or None,
    )


async def _on_http(_: Request, error: HTTPException) -> JSONResponse:
    answer = problem(HTTPStatus(error.status_code), error.detail)
    answer.headers.update(error.headers or {})
    return answer


async def _only_known_parameters(request: Request) -> None:
    """A mistyped parameter would otherwise do nothing, and nobody would notice."""
    if not request.query_params:
        return
    paths = request.app.openapi()["paths"]
    described = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    parameters = described.get("parameters", [])
    known = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            raise InvalidEventError(
                f"unknown parameter {name!r}; known are {', '.join(sorted(known)) or 'none'}", field=name
            )


async def serve(app: FastAPI, *, host: str, port: int) -> None:
    """Serves until the process is told to stop (SIGTERM or Ctrl-C) or the task is cancelled;
    requests in hand are answered.
    """
    # Its lifespan is ours: uvicorn would print whatever it raises, and forget it.
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(server.serve())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # A cancelled server would leave its requests where they are.
            server.should_exit = True
            await asyncio.wait([serving])
            raise


def configure_logging(level: str) -> None:
    """One line an entry, to standard error. The drivers say what they retry; we say what fails."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
