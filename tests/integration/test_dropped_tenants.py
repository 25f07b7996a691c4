"""A tenant is dropped while the API and a projector serve it, and made anew under its name."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
from tests.commands import command
from tests.processes import http_service, projector, until

from runfold.local import free_port
from runfold.log.admin import LogAdmin
from runfold.settings import Settings
from runfold.store.database import connect

LATER_SECONDS = 2.0
"""A service that had not left the tenant would have made something of it again after this time."""


async def new_key(settings: Settings, tenant: str) -> str:
    code, output = await command(settings, "keys", "add", "any", "--tenant", tenant)
    assert code == 0
    return output.splitlines()[-1]


async def has_ledger(api: httpx.AsyncClient, run_id: str, key: str) -> bool:
    answer = await api.get(f"/v1/runs/{run_id}/ledger", headers=bearer(key))
    return answer.status_code == 200 and len(answer.json()["messages"]) == 1


async def has_status(api: httpx.AsyncClient, key: str, *statuses: int) -> bool:
    answer = await api.get("/v1/runs", headers=bearer(key))
    return answer.status_code in statuses


async def is_listed(api: httpx.AsyncClient, key: str, run_ids: set[str]) -> bool:
    answer = await api.get("/v1/runs", headers=bearer(key))
    return answer.status_code == 200 and {run["run_id"] for run in answer.json()["runs"]} == run_ids


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def publish(api: httpx.AsyncClient, key: str, run_id: str) -> None:
    opened = await api.post("/v1/runs", json={"run_id": run_id, "agent_id": "a"}, headers=bearer(key))
    assert opened.status_code == 201, opened.text
    event = {"type": "user_message", "data": {"message": "hello"}}
    answer = await api.post(f"/v1/runs/{run_id}/events", json=event, headers=bearer(key))
    assert answer.status_code == 201, answer.text


async def follow(api: httpx.AsyncClient, key: str, run_id: str, followed: asyncio.Event) -> None:
    """Reads a run's stream until the service ends it."""
    with suppress(httpx.RemoteProtocolError, httpx.ReadError):
        async with api.stream("GET", f"/v1/runs/{run_id}/follow", headers=bearer(key)) as answer:
            async for _ in answer.aiter_bytes():
                followed.set()


async def is_gone(settings: Settings, tenant: str) -> bool:
    return not await left_of(settings, tenant)


async def left_of(settings: Settings, tenant: str) -> set[str]:
    async with LogAdmin.connect(settings.log().model_copy(update={"prefix": tenant})) as admin:
        left = set(await admin.list_topics())
    async with connect(settings.mongo, tenant) as database:
        return left | set(await database.list_collection_names())


async def test_a_tenant_in_use_is_dropped_and_made_anew(kafka: str, mongo: str, prefix: str, tmp_path: Path):
    settings = Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=prefix, authentication="required")
    tenant, port = f"{prefix}-acme", free_port()
    services = [
        http_service("api", settings, tmp_path / "api.log", port=port),
        projector(settings, tmp_path / "projector.log"),
    ]
    await asyncio.gather(*(service.start() for service in services))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:
            assert (await command(settings, "tenants", "add", tenant))[0] == 0
            first = await new_key(settings, tenant)
            await until(partial(has_status, api, first, 200))
            await publish(api, first, "r-1")
            await until(partial(is_listed, api, first, {"r-1"}))
            followed = asyncio.Event()
            following = asyncio.create_task(follow(api, first, "r-1", followed))
            await followed.wait()

            dropping = asyncio.create_task(command(settings, "tenants", "drop", tenant, "--yes"))
            await until(partial(has_status, api, first, 401, 403))
            await following
            assert (await dropping)[0] == 0

            # Kafka answers the deletion of topics before it lists them no more.
            await until(partial(is_gone, settings, tenant), what="the end of the tenant")
            await asyncio.sleep(LATER_SECONDS)
            assert await left_of(settings, tenant) == set()
            await until(partial(has_status, api, first, 401), what="the end of the tenant's key")
            assert (await command(settings, "tenants", "add", tenant))[0] == 0
            second = await new_key(settings, tenant)
            await until(partial(has_status, api, second, 200))
            assert await is_listed(api, second, set())
            await publish(api, second, "r-2")
            await until(partial(is_listed, api, second, {"r-2"}))
            await until(partial(has_ledger, api, "r-2", second))
            assert await has_status(api, first, 401)
    finally:
        await asyncio.gather(*(service.stop() for service in services))
