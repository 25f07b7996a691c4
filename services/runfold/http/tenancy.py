"""Holds open what a service has of a tenant while a request of the tenant is answered."""

from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.principal import principal_of
from runfold.http.refusals import refusal_of
from runfold_schemas.errors import ForbiddenError, RunfoldError


class Held(Hashable, Protocol):
    """One time that a tenant is open. If a tenant is dropped and another one is made with its name,
    they differ.
    """

    def release(self) -> None:
        """Ends one `hold`."""

    def until_dropped(self) -> AbstractAsyncContextManager[None]:
        """Cancels the block when the tenant is dropped, and raises `ForbiddenError` instead."""


class HeldTenants(Protocol):
    """The tenants that a service has open."""

    async def hold(self, tenant: str) -> Held:
        """Opens the tenant if it is not open, and keeps it open until `release`. Raises
        `ForbiddenError` for an unknown tenant, and the errors of opening it.
        """


_current: ContextVar[Held | None] = ContextVar("held tenant", default=None)


def held_tenant() -> Held | None:
    """The tenant of the request that this task answers, as it is open. None for a public path, and
    in an application that holds no tenants.
    """
    return _current.get()


class HoldTenant:
    """ASGI middleware, behind the authentication. A stream holds its tenant to its end. A request
    ends at once if its tenant is dropped: it could make new data of the tenant.
    """

    def __init__(self, app: ASGIApp, *, tenants: HeldTenants) -> None:
        self._app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            tenant = principal_of(scope).tenant
        except LookupError:  # a public path, or no request
            await self._app(scope, receive, send)
            return
        try:
            held = await self._tenants.hold(tenant)
        except RunfoldError as error:
            await refusal_of(error, scope["path"])(scope, receive, send)
            return
        _current.set(held)
        has_begun = False

        async def note_and_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with held.until_dropped():
                await self._app(scope, receive, note_and_send)
        except ForbiddenError as error:
            if not has_begun:  # otherwise the server breaks the answer off
                await refusal_of(error, scope["path"])(scope, receive, send)
        finally:
            held.release()
