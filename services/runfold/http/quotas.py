"""Refuses requests of tenants that have used up a quota, with 429.

A request counts before its route is looked for. What the route does is known later, and then the
other quotas are checked.
"""

from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.principal import principal_of
from runfold.http.refusals import refusal_of
from runfold.http.route_rules import Rule
from runfold_schemas.errors import QuotaExceededError

_KEY: Final = "runfold.meter"
"""Where the meter of a request stands in its ASGI scope."""


class Meter(Protocol):
    """Counts one request of a tenant that has quotas."""

    def begin(self) -> None:
        """Counts the request. Raises `QuotaExceededError`."""

    async def enter(self, *, publishes: bool, opens_run: bool) -> None:
        """Checks what the route does. Raises `QuotaExceededError`."""

    def receive(self, size: int) -> None:
        """Counts a part of the body."""

    def end(self) -> None:
        """The request is answered."""


class Meters(Protocol):
    """Has the meters of requests."""

    def meter(self, tenant: str) -> Meter | None:
        """The meter of a request. None if the tenant has no quotas."""


class QuotaGuard:
    """ASGI middleware, behind the authentication."""

    def __init__(self, app: ASGIApp, *, quotas: Meters) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._meter(scope)
        if meter is None:
            await self._app(scope, receive, send)
            return
        try:
            meter.begin()
        except QuotaExceededError as error:
            await refusal_of(error, scope["path"])(scope, receive, send)
            return
        scope[_KEY] = meter

        async def receive_counted() -> Message:
            message = await receive()
            meter.receive(len(message.get("body", b"")))
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            meter.end()

    def _meter(self, scope: Scope) -> Meter | None:
        try:
            return self._quotas.meter(principal_of(scope).tenant)
        except LookupError:  # a public path, or no request
            return None


async def check_quotas(scope: Scope, rule: Rule) -> None:
    """Raises `QuotaExceededError` if the route does what the tenant may not do any more. Deleting
    is always possible.
    """
    meter: Meter | None = scope.get(_KEY)
    if meter is not None:
        publishes = rule.publishes and scope["method"] != "DELETE"
        await meter.enter(publishes=publishes, opens_run=rule.opens_run)
