"""Building and serving an HTTP application: problem documents, health, metrics, the process."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware import Middleware

from runfold.http.audit_log import open_audit_log
from runfold.http.authentication import Authenticate, Authentication, proved
from runfold.http.authorisation import check_permission, is_operator
from runfold.http.connections import GuardedProtocol, new_protocol, watch, with_open_files
from runfold.http.documentation import add_documentation, lead_to_documentation
from runfold.http.guards import add_guards
from runfold.http.metrics import RequestTimes
from runfold.http.parameters import PathsAsSent, decode_path_parameters, refuse_unknown_parameters
from runfold.http.principal import local_principal
from runfold.http.problems import add_problem_handlers, problem
from runfold.http.quotas import Meters, QuotaGuard
from runfold.http.request_ids import RequestIds
from runfold.http.request_spans import RequestSpans
from runfold.http.route_rules import RULES, Rule
from runfold.http.server_metrics import server_document
from runfold.http.settings import HttpSettings, check_exposure, warn_of_exposure
from runfold.http.tenancy import HeldTenants, HoldTenant
from runfold.telemetry import outages, spans
from runfold_schemas.errors import RunfoldError

Check = Callable[[], Awaitable[Sequence[str] | None]]
"""Returns if the service can work, raises otherwise. The returned reasons, if any, say what does
not work although the service does.
"""


def new_app(
    title: str,
    *,
    ready: Check,
    authenticate: Authenticate | None = None,
    tenant: str = "runfold",
    tenants: HeldTenants | None = None,
    quotas: Meters | None = None,
    rules: Mapping[str, Rule] = RULES,
    add_home: Callable[[FastAPI], None] = lead_to_documentation,
    **options: Any,
) -> FastAPI:
    """A FastAPI application that answers errors with problem documents, with `/health/live`,
    `/health/ready` and `/metrics`.

    Every request to a path that is not public has a principal: the one that `authenticate` finds,
    or without it a local one that may do everything to the data of `tenant`, which is the
    installation's own. Of `tenants`, the principal's is held while the request is answered. `rules`
    say what the principal needs for each route, and `quotas` what its tenant has used. `add_home`
    adds the page at `/`.

    Routes match percent-encoded paths, so `%2F` in a run's id does not end the id.
    """
    checks = [
        Depends(check) for check in (decode_path_parameters, check_permission, refuse_unknown_parameters)
    ]
    # FastAPI's own pages load their scripts from other hosts.
    app = FastAPI(title=title, dependencies=checks, docs_url=None, redoc_url=None, **options)
    app.state.rules = rules
    app.state.tenant = tenant
    app.state.query_parameters = {}
    app.add_middleware(RequestTimes)
    app.add_middleware(RequestIds)
    app.add_middleware(PathsAsSent)
    # `add_guards` puts before the authentication what answers without a credential.
    app.user_middleware.append(
        Middleware(Authentication, local=local_principal(tenant), authenticate=authenticate)
    )
    # Behind the authentication, because callers decide whether their requests have spans.
    if spans.is_on():
        app.user_middleware.append(Middleware(RequestSpans))
    if quotas is not None:
        app.user_middleware.append(Middleware(QuotaGuard, quotas=quotas))
    if tenants is not None:
        app.user_middleware.append(Middleware(HoldTenant, tenants=tenants))
    add_problem_handlers(app)
    add_documentation(app)
    add_home(app)

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live", tags=["health"], summary="Is the process alive?")
    async def live() -> dict[str, str]:
        """Answers 200 as long as the process runs."""
        return {"status": "ok"}

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", tags=["health"], summary="Can the service work?")
    async def is_ready(request: Request) -> JSONResponse:
        """Answers 200 if the servers that this service needs answer, 503 otherwise. The status is
        `degraded` if the service works and single runs or topics do not. The reasons name tenants
        and runs. With authentication, only keys that may read `/metrics` get them, and all others
        get their `count`. The same keys get `servers`, those that do not answer at present: since
        when, and the last error.
        """
        try:
            reasons = await ready()
        except RunfoldError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), **await away(request))
        if reasons and not await may_know(request):
            return JSONResponse({"status": "degraded", "count": len(reasons)})
        body = {"status": "degraded", "reasons": [*reasons]} if reasons else {"status": "ok"}
        return JSONResponse({**body, **await away(request)})

    async def may_know(request: Request) -> bool:
        return authenticate is None or is_operator(await proved(authenticate, request.scope), tenant)

    async def away(request: Request) -> dict[str, Any]:
        servers = [server_document(state) for state in outages.states() if state.is_away]
        return {"servers": servers} if servers and await may_know(request) else {}

    @app.get("/metrics", tags=["health"], summary="Metrics")
    async def metrics() -> PlainTextResponse:
        """The metrics of this process in Prometheus' text format."""
        return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return app


async def serve(app: FastAPI, settings: HttpSettings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C, or until the task is cancelled. Requests
    in progress are answered first. Raises `ConfigurationError` if everybody could do everything
    from other machines.
    """
    check_exposure(settings)
    warn_of_exposure(settings)
    audit_log = open_audit_log(settings.audit_log) if settings.audit_log else None
    add_guards(app, settings, audit_log)
    # Named here, because uvicorn would choose another parser if one is installed.
    protocol = new_protocol(with_open_files(settings))
    server = uvicorn.Server(_config(app, settings, protocol))
    async with app.router.lifespan_context(app):
        serving, watching = asyncio.create_task(server.serve()), asyncio.create_task(watch(server, protocol))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # If we cancelled the server itself, requests in progress would stay unanswered.
            server.should_exit = True
            await asyncio.wait([serving])
            raise
        finally:
            watching.cancel()
            if audit_log:
                audit_log.close()


def _config(app: FastAPI, settings: HttpSettings, protocol: type[GuardedProtocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        # We run the lifespan ourselves, because uvicorn would only print an error that it raises.
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=5,
    )
