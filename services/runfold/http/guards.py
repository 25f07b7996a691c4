"""Refuses requests that a web page of another site may have sent from its reader's browser.

Such a page cannot read Runfold's answers, but it can make the browser send requests to servers that
only the browser reaches, for example on `localhost`. `HostGuard` refuses names that an attacker's
DNS server points to this machine. `OriginGuard` refuses what a browser sends without asking first.
"""

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from runfold.http.audit import Audit
from runfold.http.audit_log import AuditLog
from runfold.http.body_budget import BodyBudget
from runfold.http.problems import problem
from runfold.http.request_ids import HEADER
from runfold.http.settings import HttpSettings, is_loopback, names_in

_CONSOLE: Final = "/console/"

_EXEMPT: Final = ("/health/", "/metrics")
"""Probes and Prometheus ask for pods by their addresses."""

_ASKED_FIRST: Final = ("application/json", "application/x-ndjson")
"""For bodies of these types a browser asks the server first, by a preflight request."""

_QUOTED_MAX: Final = 100

_EXPOSED: Final = ("Location", "Retry-After", "Runfold-Source", "WWW-Authenticate", HEADER)


def add_guards(app: FastAPI, settings: HttpSettings, audit_log: AuditLog | None = None) -> None:
    """From here on the application refuses requests for other hosts and from other origins, and
    bodies beyond the budget. With `allowed_origins`, it answers the browsers' questions about them
    (CORS). With an audit log, it refuses everything that the log cannot take.
    """
    origins = names_in(settings.allowed_origins)
    # The first middleware is the outermost. Those that the application has already stay outside, so
    # that refused requests are in its metrics. The authentication stands behind the guards, because
    # browsers ask without a credential, and before bodies are held.
    [at] = [at for at, each in enumerate(app.user_middleware) if "authenticate" in each.kwargs]
    outer, [authentication, *of_principal] = app.user_middleware[:at], app.user_middleware[at:]
    if settings.authentication == "required" and authentication.kwargs["authenticate"] is None:
        raise RuntimeError("the application was built without the authentication that its settings require")
    guards = [Middleware(Audit, log=audit_log)] if audit_log else []
    if (hosts := _hosts(settings)) is not None:
        guards.append(Middleware(HostGuard, hosts=hosts))
    elif authentication.kwargs["authenticate"] is None and not settings.allowed_hosts:
        guards.append(Middleware(HostGuard, hosts=(), of_console=True))
    if origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
        guards.append(cors)
    guards.append(Middleware(OriginGuard, origins=origins))
    inner = [Middleware(EncodingGuard), Middleware(BodyBudget)]
    app.user_middleware = [*outer, *guards, authentication, *of_principal, *inner]


def is_exempt(scope: Scope) -> bool:
    """Whether the request asks for health or metrics. They are answered under any name and load."""
    path: str = scope["path"]
    return path.startswith(_EXEMPT)


def _is_console(scope: Scope) -> bool:
    """Whether the request asks for the page or a file of the console."""
    path: str = scope["path"]
    return path == "/" or path.startswith(_CONSOLE)


class HostGuard:
    """ASGI middleware. Loopback names pass always: no DNS server of an attacker gives them. With
    `of_console`, all else than the console is answered under any name: programs, which nobody leads
    to another name, may use addresses that the service does not know.
    """

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...], of_console: bool = False) -> None:
        self._app = app
        self._of_console = of_console
        self._names = frozenset(host for host in hosts if not host.startswith("*."))
        self._endings = tuple(host.removeprefix("*") for host in hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_exempt(scope) or (self._of_console and not _is_console(scope)):
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get("host", "")
        host = _without_port(header)
        if host in self._names or host.endswith(self._endings) or is_loopback(host):
            await self._app(scope, receive, send)
            return
        answer = problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this service does not answer requests for the host {header[:_QUOTED_MAX]!r}: set"
            " RUNFOLD_ALLOWED_HOSTS to the names that its clients use, separated by commas",
            type_="urn:runfold:problem:HostNotAllowed",
        )
        await answer(scope, receive, send)


class OriginGuard:
    """ASGI middleware. Refuses a write from a page of another origin if the browser has not asked
    first. Whether a browser that asks gets permission is decided by `CORSMiddleware`, or by a
    gateway.
    """

    def __init__(self, app: ASGIApp, *, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not self._is_foreign(scope):
            await self._app(scope, receive, send)
            return
        origin = Headers(scope=scope)["origin"]
        answer = problem(
            HTTPStatus.FORBIDDEN,
            f"pages of {origin[:_QUOTED_MAX]!r} may not write here: send application/json, and set"
            " RUNFOLD_ALLOWED_ORIGINS if the page is yours",
            type_="urn:runfold:problem:OriginNotAllowed",
        )
        await answer(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "").lower()
        if not origin or "*" in self._origins or origin in self._origins:
            return False
        if headers.get("sec-fetch-site") == "same-origin":
            return False
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        return media_type not in _ASKED_FIRST and urlsplit(origin).netloc != headers.get("host", "").lower()


class EncodingGuard:
    """ASGI middleware. Refuses compressed bodies: no service unpacks them, and an unpacked body
    could be of any size.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = Headers(scope=scope).get("content-encoding", "") if scope["type"] == "http" else ""
        if encoding.strip().lower() in ("", "identity"):
            await self._app(scope, receive, send)
            return
        answer = problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the Content-Encoding {encoding[:_QUOTED_MAX]!r} is not supported: send the body uncompressed",
            type_="urn:runfold:problem:EncodingNotSupported",
        )
        answer.headers["Accept-Encoding"] = "identity"
        await answer(scope, receive, send)


def _hosts(settings: HttpSettings) -> tuple[str, ...] | None:
    """The names under which the service may be asked; None: all names."""
    hosts = names_in(settings.allowed_hosts)
    if "*" in hosts or not (hosts or is_loopback(settings.host)):
        return None
    return (*hosts, settings.host.lower())


def _without_port(header: str) -> str:
    """The name in a `Host` header. An IPv6 address keeps its brackets."""
    host, colon, port = header.strip().lower().rpartition(":")
    return host if colon and port.isdecimal() else header.strip().lower()
