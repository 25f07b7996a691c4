"""Who sends a request, and what this principal may do. Every request that reaches a route has
one.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

AsgiScope = MutableMapping[str, Any]

_KEY: Final = "runfold.principal"
"""Where the principal stands in the ASGI scope of a request."""


class Scope(StrEnum):
    """What a principal may do. No scope contains another."""

    publish = "publish"
    read = "read"
    memories = "memories"
    administer = "administer"


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `agents` and `users` limit the principal to these; None: to none in
    particular.
    """

    tenant: str
    """The prefix whose data the principal may use."""
    subject: str
    """Names the principal in the audit log: `key:` and the key's id, or `token:` and the token's
    subject.
    """
    scopes: frozenset[Scope]
    agents: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None


LOCAL: Final = "local"
"""The subject of all requests to a service without authentication."""


def local_principal(tenant: str) -> Principal:
    """The principal of all requests to a service without authentication."""
    return Principal(tenant=tenant, subject=LOCAL, scopes=frozenset(Scope))


class _HasScope(Protocol):
    @property
    def scope(self) -> AsgiScope: ...


def principal_of(request: AsgiScope | _HasScope) -> Principal:
    """The principal of a request, or of its ASGI scope. Raises `LookupError` for a public path, and
    if no middleware has authenticated the request.
    """
    scope = request if isinstance(request, MutableMapping) else request.scope
    principal: Principal | None = scope.get(_KEY)
    if principal is None:
        raise LookupError(f"the request to {scope.get('path')} has no principal: it is not authenticated")
    return principal


def set_principal(scope: AsgiScope, principal: Principal) -> None:
    """Gives the request its principal."""
    scope[_KEY] = principal
