"""Three tenants of one API for tests: the installation's own and two others."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi import FastAPI
from tests.principals import EVERY_SCOPE, authenticated
from tests.querying import projected, served

from runfold.api.app import build_app
from runfold.http.principal import Principal
from runfold.http.tenancy import HoldTenant
from runfold.log.clients import LogClients
from runfold.log.compacted import create
from runfold.settings import Settings
from runfold.tenants.open_tenants import OpenTenants
from runfold.tenants.plans import Plans
from runfold.tenants.registry import Tenant, Tenants, put_tenant, settings_of, tenant_topic
from runfold_schemas.codec import Record


def registry(settings: Settings, *names: str, **fields: Any) -> Tenants:
    """A registry with these tenants, each a prefix below that of the installation."""
    tenants = Tenants(Tenant.own(settings))
    for name in names:
        put(tenants, name_of(settings, name), **fields)
    return tenants


def name_of(settings: Settings, name: str) -> str:
    """The full name of a tenant: "own" is the installation's."""
    return settings.prefix if name == "own" else f"{settings.prefix}-{name}"


def put(tenants: Tenants, name: str, **fields: Any) -> None:
    tenant = Tenant(
        **{"name": name, "database": name, "partitions": 12, "created_at": datetime.now(UTC)} | fields
    )
    tenants.take(Record(0, 0, b"tenant:" + name.encode(), (), tenant.model_dump_json().encode()))


def mark_dropping(tenants: Tenants, name: str) -> None:
    tenants.take(Record(0, 0, b"dropping:" + name.encode(), (), b"{}"))


def principals_of(settings: Settings, *names: str) -> dict[str, Principal]:
    """By its name as a credential, for each tenant a principal that may do everything."""
    return {
        name: Principal(tenant=name_of(settings, name), subject=f"key:{name}", scopes=EVERY_SCOPE)
        for name in names
    }


def tenants_app(settings: Settings, tenants: Tenants, *names: str, **options: Any) -> FastAPI:
    """The API with the tenants of this registry, and their principals."""
    app = build_app(settings, plans=Plans(settings, lambda: tenants), **options)
    return authenticated(app, principals_of(settings, "own", *names))


def open_tenants(app: FastAPI) -> OpenTenants[Any]:
    [middleware] = [each for each in app.user_middleware if each.cls is HoldTenant]
    tenants: OpenTenants[Any] = middleware.kwargs["tenants"]
    return tenants


@asynccontextmanager
async def served_tenants(
    settings: Settings, app: FastAPI, tenants: Tenants
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API, and a projector for each tenant. The registry in Kafka has them too."""
    topic = tenant_topic(settings)
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(LogClients.connect(settings.log()))
        await create(settings.log(), topic)
        for tenant in tenants.all():
            await put_tenant(clients.publisher, topic, tenant)
        for tenant in (Tenant.own(settings), *tenants.all()):
            await stack.enter_async_context(projected(settings_of(settings, tenant)))
        yield await stack.enter_async_context(served(app))
