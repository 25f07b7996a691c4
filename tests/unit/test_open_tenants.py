"""A service leaves a tenant that is dropped, whatever its requests are doing."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Self

import httpx
import pytest
from fastapi import FastAPI
from tests.api_tenants import mark_dropping, put
from tests.principals import EVERY_SCOPE
from tests.processes import DEADLINE_SECONDS

from runfold.http.authentication import Authentication
from runfold.http.principal import Principal
from runfold.http.tenancy import HoldTenant
from runfold.settings import Settings
from runfold.tenants.open_tenants import LEAVE_SECONDS, OpenTenants
from runfold.tenants.plans import Plans
from runfold.tenants.registry import Tenant, Tenants


class Parts:
    is_busy = False

    def __init__(self, *_: object) -> None:
        self.closed_at = float("inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.closed_at = time.monotonic()


@pytest.fixture
def made() -> list[Parts]:
    return []


@pytest.fixture
def tenants() -> Tenants:
    tenants = Tenants(Tenant.own(Settings()))
    put(tenants, "acme")
    return tenants


@pytest.fixture
async def client(
    tenants: Tenants, made: list[Parts], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    async def connected(_: object) -> Any:
        return SimpleNamespace()

    def open_parts(*_: object) -> Parts:
        made.append(Parts())
        return made[-1]

    monkeypatch.setattr(OpenTenants, "connected", connected)
    opened = OpenTenants(Settings(), Parts(), open_parts=open_parts, plans=Plans(Settings(), lambda: tenants))
    app = FastAPI()
    app.add_middleware(HoldTenant, tenants=opened)
    principal = Principal(tenant="acme", subject="key:acme", scopes=EVERY_SCOPE)
    app.add_middleware(Authentication, local=principal)

    @app.get("/quick")
    async def quick() -> None: ...

    @app.get("/endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    transport = httpx.ASGITransport(app)
    async with opened, httpx.AsyncClient(transport=transport, base_url="http://runfold") as client:
        yield client


async def test_a_request_of_a_dropped_tenant_ends_and_its_parts_are_closed(client, tenants, made):
    endless = asyncio.create_task(client.get("/endless"))
    assert (await client.get("/quick")).status_code == 200
    marked_at = time.monotonic()
    mark_dropping(tenants, "acme")

    async with asyncio.timeout(DEADLINE_SECONDS):
        answer = await endless
        while made[0].closed_at == float("inf"):
            await asyncio.sleep(0.05)

    assert (answer.status_code, "is being dropped" in answer.text) == (403, True)
    assert made[0].closed_at - marked_at < LEAVE_SECONDS / 2
    assert (await client.get("/quick")).status_code == 403
