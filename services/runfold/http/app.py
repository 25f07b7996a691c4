"""Building and serving an HTTP application: problem documents, health, metrics, the process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from runfold.http.documentation import add_documentation
from runfold.http.metrics import RequestTimes
from runfold.http.parameters import PathsAsSent, decode_path_parameters, refuse_unknown_parameters
from runfold.http.problems import add_problem_handlers, problem
from runfold_schemas.errors import RunfoldError

Check = Callable[[], Awaitable[None]]
"""Returns if the service can work, raises otherwise."""


def new_app(title: str, *, ready: Check, **options: Any) -> FastAPI:
    """A FastAPI application that answers errors with problem documents, with `/health/live`,
    `/health/ready` and `/metrics`.

    Routes match percent-encoded paths, so `%2F` in a run's id does not end the id.
    """
    checks = [Depends(decode_path_parameters), Depends(refuse_unknown_parameters)]
    # FastAPI's own pages load their scripts from other hosts.
    app = FastAPI(title=title, dependencies=checks, docs_url=None, redoc_url=None, **options)
    app.add_middleware(RequestTimes)
    app.add_middleware(PathsAsSent)
    add_problem_handlers(app)
    add_documentation(app)

    @app.get("/health/live", tags=["health"], summary="Is the process alive?")
    async def live() -> dict[str, str]:
        """Answers 200 as long as the process runs."""
        return {"status": "ok"}

    @app.get("/health/ready", tags=["health"], summary="Can the service work?")
    async def is_ready() -> JSONResponse:
        """Answers 200 if the servers that this service needs answer, 503 otherwise."""
        try:
            await ready()
        except RunfoldError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", tags=["health"], summary="Metrics")
    async def metrics() -> PlainTextResponse:
        """The metrics of this process in Prometheus' text format."""
        return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return app


async def serve(app: FastAPI, *, host: str, port: int) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C, or until the task is cancelled. Requests
    in progress are answered first.
    """
    # We run the lifespan here, because uvicorn would only print an error that it raises.
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
            # If we cancelled the server itself, requests in progress would stay unanswered.
            server.should_exit = True
            await asyncio.wait([serving])
            raise


def configure_logging(level: str) -> None:
    """Logs one line for each entry to standard error. aiokafka's own log is off, because it reports
    attempts that are retried; our log reports failures.
    """
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
