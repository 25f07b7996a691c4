"""Checks that the principal of a request may use the route that the request found.

FastAPI's routes are checked by a dependency of the whole application, and other routes by
`RouteGuard`. Both use the table in `route_rules`. A route without a rule answers nobody.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final

from fastapi import FastAPI, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from runfold.http.principal import Principal, Scope, principal_of
from runfold.http.quotas import check_quotas
from runfold.http.route_rules import RULES, Rule, Whose, rule_of
from runfold_schemas.errors import ForbiddenError, ScopeMissingError

CheckOwner = Callable[[Principal, Whose, Mapping[str, str]], Awaitable[None]]
"""Raises an error if a limited principal may not use the data that the parameters of the path and
of the query name.
"""

_current: ContextVar[Principal] = ContextVar("principal")


def current_principal() -> Principal:
    """The principal of the request that this task answers. Raises `LookupError` if the task answers
    none, or a public route.
    """
    return _current.get()


def is_limited(principal: Principal) -> bool:
    """Whether the principal is limited to agents or users."""
    return principal.agents is not None or principal.users is not None


def is_operator(principal: Principal | None, tenant: str) -> bool:
    """Whether the principal may read what a service says about all tenants. `tenant` is the
    installation's own.
    """
    return principal is not None and principal.tenant == tenant and not is_limited(principal)


def require_scope(principal: Principal, scope: Scope, *, action: str) -> None:
    """Raises `ScopeMissingError` if the principal does not have the scope."""
    if scope not in principal.scopes:
        raise _missing(scope, action)


def check_owners_by(app: FastAPI, check: CheckOwner) -> None:
    """From here on the application asks `check` about limited principals. Without this, its routes
    of runs and sessions refuse them.
    """
    app.state.check_owner = check


async def check_permission(request: Request) -> None:
    """A dependency of the whole application. Raises `ForbiddenError`, or the error of a thing that
    does not exist if it belongs to others.
    """
    path = request.scope["route"].path_format
    rule = await _enter(request.scope, path, rule_of(request.method, path, request.app.state.rules))
    if rule.whose is Whose.INSTALLATION and current_principal().tenant != request.app.state.tenant:
        raise ForbiddenError(f"{request.method} {path} is for the operator: it has the data of all tenants")
    if rule.whose in _BY_PARAMETERS and is_limited(principal := current_principal()):
        check: CheckOwner = getattr(request.app.state, "check_owner", _refuse_limited)
        await check(principal, rule.whose, {**request.query_params, **request.path_params})


class RouteGuard:
    """The ASGI application of a route that is not FastAPI's, behind the check of its rule."""

    def __init__(self, app: ASGIApp, path: str, rules: Mapping[str, Rule]) -> None:
        self._app = app
        self._path = path
        self._rules = rules

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await _enter(scope, self._path, rule_of(scope["method"], self._path, self._rules))
        await self._app(scope, receive, send)


def guard(route: Route, rules: Mapping[str, Rule] = RULES) -> Route:
    """The route, behind the check of its rule."""
    route.app = RouteGuard(route.app, route.path, rules)
    return route


_BY_PARAMETERS: Final = (Whose.CHANGED_RUN, Whose.READ_RUN, Whose.SESSION, Whose.LISTED_RUNS)


async def _enter(scope: AsgiScope, path: str, rule: Rule | None) -> Rule:
    """Checks the scopes of a request, and makes its principal the current one."""
    if rule is None:
        raise ForbiddenError(f"the route {scope['method']} {path} has no rule, so nobody may use it")
    if not rule.is_public:
        principal = principal_of(scope)
        _check_rule(principal, rule, f"{scope['method']} {path}")
        await check_quotas(scope, rule)
        _current.set(principal)
    return rule


def _check_rule(principal: Principal, rule: Rule, action: str) -> None:
    if not any(scopes <= principal.scopes for scopes in rule.scopes):
        raise _missing(min(rule.scopes[0] - principal.scopes), action)
    if rule.whose in (Whose.EVERYBODY, Whose.INSTALLATION) and is_limited(principal):
        raise ForbiddenError(f"{action} needs a key that is not limited to agents or users")


def _missing(scope: Scope, action: str) -> ScopeMissingError:
    return ScopeMissingError(
        f"{action} needs the scope '{scope}': ask an administrator for a key that has it",
        missing_scope=str(scope),
    )


async def _refuse_limited(_: Principal, __: Whose, ___: Mapping[str, str]) -> None:
    raise ForbiddenError("this service cannot look up owners, so it refuses keys that are limited")
